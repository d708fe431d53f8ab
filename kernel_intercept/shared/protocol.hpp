// Messages between a client and the manager: one SEQPACKET datagram each, both on one machine.
#pragma once

#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernel_intercept/shared/layout.hpp"

namespace explsched::shared {

constexpr std::uint32_t kMessageMagic = 0x4d505845;  // "EXPM"
constexpr std::uint16_t kProtocolVersion = 1;
constexpr const char* kSocketVariable = "EXPLSCHED_KM_SOCKET";

enum class MessageKind : std::uint16_t { kHello = 1, kWelcome, kRefused, kStatus, kNotify, kForget };

struct Preamble {
    std::uint32_t magic;
    std::uint16_t version;
    MessageKind kind;
};

struct Hello {
    Preamble preamble;
    Class priority;
    std::uint32_t request_permille;  // of the GPU's time, 1..1000
    std::uint32_t limit_permille;    // request..1000
    std::uint32_t compute_capability;
    std::uint32_t multiprocessors;
    std::uint32_t reserved;
    std::array<unsigned char, 16> gpu_uuid;
    std::array<char, 64> job;  // Slurm job id, zero-terminated; empty outside of jobs
};

// Comes with three file descriptors: the page of the GPU, the profile table and the signals. The connection
// stays open as long as the client lives; on it the client tells of a launch that waits.
struct Welcome {
    Preamble preamble;
    std::uint32_t slot;
    std::uint32_t page_bytes;
    std::uint32_t table_bytes;
    std::uint32_t tenancy;  // of the slot: while it holds this number, the client may write to it
};

struct Refused {
    Preamble preamble;
    std::array<char, 120> reason;  // zero-terminated
};

// A profile to drop. The answer is the same datagram: from then on the manager does not know the kernel, and
// takes it out of the file with its next save.
struct Forget {
    Preamble preamble;
    KernelKey key;
};

// kStatus and kNotify are a preamble alone. The answer to kStatus is one datagram of JSON text.

constexpr std::uint32_t kWelcomeDescriptors = 3;
constexpr std::size_t kLongestMessage = 256;
constexpr std::size_t kLongestStatus = std::size_t{128} * 1024;

constexpr Preamble preamble(MessageKind kind) { return {kMessageMagic, kProtocolVersion, kind}; }

// Whether a datagram is a message of that kind, which is then in `message`.
template <typename Message>
bool is_message(const void* data, std::size_t size, MessageKind kind, Message& message) {
    if (size != sizeof(message)) return false;
    std::memcpy(&message, data, sizeof(message));
    const Preamble expected = preamble(kind);
    return std::memcmp(&message, &expected, sizeof(expected)) == 0;
}

// Whether the process at the other end of a unix socket belongs to `uid`; its pid through `pid`.
inline bool belongs_to(int socket, std::uint32_t uid, std::int32_t& pid) {
    ucred peer{};
    socklen_t size = sizeof(peer);
    if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return false;
    pid = peer.pid;
    return peer.uid == uid;
}

static_assert(sizeof(Preamble) == 8 && sizeof(Hello) == 112 && sizeof(Welcome) == 24 &&
              sizeof(Refused) == 128 && sizeof(Forget) == 48);
static_assert(std::is_trivially_copyable_v<Hello> && sizeof(Hello) <= kLongestMessage);

}  // namespace explsched::shared
