// What the daemon hears from its clients and answers.
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "kernel_intercept/manager/log.hpp"
#include "kernel_intercept/manager/server.hpp"
#include "kernel_intercept/shared/clock.hpp"

namespace explsched::manager {

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

void Server::hear(std::uint64_t id) {
    const auto found = connections_.find(id);
    if (found == connections_.end()) return;
    // A bounded number, so that one that rings without end holds up nobody.
    for (int i = 0; i < 16; ++i) {
        std::array<char, shared::kLongestMessage> data;
        const ssize_t got = recv(found->second.socket.get(), data.data(), data.size(), MSG_TRUNC);
        if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
        if (got <= 0) return drop(id);
        answer(found->second, id, data.data(), static_cast<std::size_t>(got));
        if (connections_.count(id) == 0) return;
    }
}

void Server::answer(Connection& connection, std::uint64_t id, const char* data, std::size_t size) {
    shared::Preamble preamble{};
    if (size < sizeof(preamble) || size > shared::kLongestMessage)
        return refuse_malformed(connection, id, "message of a wrong size");
    std::memcpy(&preamble, data, sizeof(preamble));
    if (preamble.magic != shared::kMessageMagic)
        return refuse_malformed(connection, id, "not a message of explsched");
    if (preamble.version != shared::kProtocolVersion)
        return refuse_malformed(connection, id, "another version of the protocol");
    if (preamble.kind == shared::MessageKind::kNotify && size == sizeof(preamble) &&
        connection.gpu != nullptr)
        return;
    if (preamble.kind == shared::MessageKind::kStatus && size == sizeof(preamble)) {
        const std::string text = status();
        if (send(connection.socket.get(), text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
            drop(id);
        return;
    }
    shared::Forget forget{};
    if (preamble.kind == shared::MessageKind::kForget && size == sizeof(forget)) {
        std::memcpy(&forget, data, sizeof(forget));
        profiles_.forget(forget.key);
        keeper_.save_soon();
        if (send(connection.socket.get(), &forget, sizeof(forget), MSG_NOSIGNAL | MSG_DONTWAIT) < 0) drop(id);
        return;
    }
    shared::Hello hello{};
    if (preamble.kind != shared::MessageKind::kHello || size != sizeof(hello) || connection.gpu != nullptr) {
        return refuse_malformed(connection, id, "message of a wrong kind or size");
    }
    std::memcpy(&hello, data, sizeof(hello));
    if (const char* fault = fault_of(hello)) return refuse_malformed(connection, id, fault);
    try {
        welcome(connection, hello);
    } catch (const std::system_error& error) {
        log(error.what());
        return refuse(connection, id, "no memory or file descriptor is left for another GPU");
    }
    static_assert(shared::kSlots == 64);
    if (connection.gpu == nullptr) refuse(connection, id, "64 processes use this GPU already");
}

void Server::welcome(Connection& connection, const shared::Hello& hello) {
    const std::string uuid = hex(hello.gpu_uuid);
    if (gpus_.size() >= shared::kSlots && gpus_.count(uuid) == 0) return;  // no machine has as many
    if (gpus_.count(uuid) == 0) gpus_.emplace(uuid, std::make_unique<Gpu>(settings_, hello));
    Gpu& gpu = *gpus_.at(uuid);
    const auto slot = gpu.join(
        {connection.pid, hello.job.data(), hello.priority, hello.request_permille, hello.limit_permille},
        shared::now_ns());
    if (!slot) return;
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
}

void Server::refuse_malformed(Connection& connection, std::uint64_t id, const char* reason) {
    ++totals_.malformed;
    refuse(connection, id, reason);
}

void Server::refuse(Connection& connection, std::uint64_t id, const char* reason) {
    shared::Refused reply{shared::preamble(shared::MessageKind::kRefused), {}};
    std::strncpy(reply.reason.data(), reason, reply.reason.size() - 1);
    send(connection.socket.get(), &reply, sizeof(reply), MSG_NOSIGNAL | MSG_DONTWAIT);
    drop(id);
}

}  // namespace explsched::manager
