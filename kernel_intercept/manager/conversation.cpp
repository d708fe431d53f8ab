// What the daemon hears from its clients and answers.
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "kernel_intercept/manager/log.hpp"
#include "kernel_intercept/manager/server.hpp"
#include "kernel_intercept/shared/clock.hpp"

namespace explsched::manager {

namespace {

// Why a hello cannot be accepted, or nullptr.
const char* fault_of(const shared::Hello& hello) {
    if (hello.priority != shared::Class::kHigh && hello.priority != shared::Class::kBestEffort)
        return "unknown class";
    if (hello.request_permille < 1 || hello.request_permille > hello.limit_permille ||
        hello.limit_permille > 1000) {
        return "request and limit must be 1..1000 permille, request <= limit";
    }
    if (std::memchr(hello.job.data(), '\0', hello.job.size()) == nullptr) return "job id too long";
    return nullptr;
}

std::string hex(const std::array<unsigned char, 16>& uuid) {
    std::string text;
    for (const unsigned char byte : uuid) {
        text += "0123456789abcdef"[byte >> 4];
        text += "0123456789abcdef"[byte & 15];
    }
    return text;
}

}  // namespace

void Server::hear(std::uint64_t id) {
    const auto found = connections_.find(id);
    if (found == connections_.end()) return;
    // A bounded number, so that one that rings without end holds up nobody.
    for (int i = 0; i < 16; ++i) {
        std::array<char, shared::kLongestMessage> data;
        const ssize_t got = recv(found->second.socket.get(), data.data(), data.size(), MSG_TRUNC);
        if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
        if (got <= 0) return drop(id);
        if (const char* fault = answer(found->second, id, data.data(), static_cast<std::size_t>(got))) {
            ++totals_.malformed;
            refuse(found->second, id, fault);
        }
        if (connections_.count(id) == 0) return;
    }
}

// Why the message is malformed, or nullptr.
const char* Server::answer(Connection& connection, std::uint64_t id, const char* data, std::size_t size) {
    using shared::MessageKind;
    const auto is = [&](MessageKind kind, auto& message) {
        return shared::is_message(data, size, kind, message);
    };
    const auto reply = [&](const void* message, std::size_t bytes) {
        if (send(connection.socket.get(), message, bytes, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) drop(id);
        return nullptr;
    };
    shared::Preamble preamble{};
    shared::Forget forget{};
    shared::Hello hello{};
    if (size < sizeof(preamble) || size > shared::kLongestMessage) return "message of a wrong size";
    std::memcpy(&preamble, data, sizeof(preamble));
    if (preamble.magic != shared::kMessageMagic) return "not a message of explsched";
    if (preamble.version != shared::kProtocolVersion) return "another version of the protocol";
    if (is(MessageKind::kNotify, preamble) && connection.gpu != nullptr) return nullptr;
    if (is(MessageKind::kStatus, preamble)) {
        const std::string text = status();
        return reply(text.data(), text.size());
    }
    if (is(MessageKind::kForget, forget)) {
        profiles_.forget(forget.key);
        keeper_.save_soon();
        return reply(&forget, sizeof(forget));
    }
    if (!is(MessageKind::kHello, hello) || connection.gpu != nullptr)
        return "message of a wrong kind or size";
    if (const char* fault = fault_of(hello)) return fault;
    if (const char* reason = welcome(connection, hello)) refuse(connection, id, reason);
    return nullptr;
}

// Why the client gets no slot, or nullptr.
const char* Server::welcome(Connection& connection, const shared::Hello& hello) {
    static_assert(shared::kSlots == 64);
    constexpr const char* kFull = "64 processes use this GPU already";
    const std::string uuid = hex(hello.gpu_uuid);
    if (gpus_.size() >= shared::kSlots && gpus_.count(uuid) == 0) return kFull;  // no machine has as many
    try {
        if (gpus_.count(uuid) == 0) gpus_.emplace(uuid, std::make_unique<Gpu>(settings_, hello));
    } catch (const std::system_error& error) {
        log(error.what());
        return "no memory or file descriptor is left for another GPU";
    }
    Gpu& gpu = *gpus_.at(uuid);
    const auto slot = gpu.join(
        {connection.pid, hello.job.data(), hello.priority, hello.request_permille, hello.limit_permille},
        shared::now_ns());
    if (!slot) return kFull;
    connection.gpu = &gpu;
    connection.slot = *slot;
    shared::Welcome reply{shared::preamble(shared::MessageKind::kWelcome), *slot, sizeof(shared::Page),
                          sizeof(shared::Table), gpu.page().slots[*slot].client.tenancy};
    const std::array<int, shared::kWelcomeDescriptors> fds{gpu.descriptor(), profiles_.table_descriptor(),
                                                           gpu.signals_descriptor()};
    iovec part{&reply, sizeof(reply)};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(fds))> control{};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(fds));
    std::memcpy(CMSG_DATA(header), fds.data(), sizeof(fds));
    if (sendmsg(connection.socket.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 && errno != EPIPE) {
        // Its end will be seen as a hang-up.
        log("pid " + std::to_string(connection.pid) + ": welcome: " + std::strerror(errno));
    }
    return nullptr;
}

void Server::refuse(Connection& connection, std::uint64_t id, const char* reason) {
    shared::Refused reply{shared::preamble(shared::MessageKind::kRefused), {}};
    std::strncpy(reply.reason.data(), reason, reply.reason.size() - 1);
    send(connection.socket.get(), &reply, sizeof(reply), MSG_NOSIGNAL | MSG_DONTWAIT);
    drop(id);
}

}  // namespace explsched::manager
