// A GPU in virtual time that is as unfriendly as real ones are: short kernels behind hundreds of others,
// copies, waits between streams, kernels that spin for a peer, memory operations of streams, clocks that
// change, and a slowdown of kernels that run together which no profile states.
//
// What runs together shares compute and bandwidth: all are slowed down by max(1, sum of compute, sum of
// bandwidth) and, if several clients run, by a factor of each pair of clients that only this model knows. A
// stream that waits for a word in memory blocks all streams of its client on the same hardware channel, of
// which a client has two, as under MPS. Gaps between kernels and costs of memory operations are those of an
// H100 (benchmarks/results/gpu_h100.json: 1.7 us; 1.8 for a write, 2.7 for a write and a wait in one batch).
//
// What NVIDIA's drivers offer to divide the multiprocessors, off unless an arm asks for it:
//
// - A share of them (active thread percentage), fixed when a client starts: a kernel that would use more
//   takes as much longer, and asks for as much less bandwidth. Shares of one GPU still harm each other:
//   DenseNet121 with 90 % of an A100 takes 7 % longer beside another one with the other 10 %, with 80 %
//   beside 20 % 14 % longer (forums.developer.nvidia.com, topic 326201). So the hidden factors are in
//   proportion to the share that the smaller one runs at.
// - Priority: blocks of the prior client are placed first, and none that is resident makes room (topic
// 78183).
//   So a kernel shares compute as ever until the blocks that it met have ended, and takes what it needs from
//   then on. Bandwidth knows no priority. How long blocks are is a guess; see `block_ns`.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <random>
#include <vector>

#include "kernel_intercept/shared/packed.hpp"

namespace hostile {

using explsched::shared::Load;

enum class Kind : std::uint8_t { kKernel, kSpin, kCopy, kWrite, kWait, kRecord, kWaitEvent };

struct Work {
    Kind kind;
    double alone_ns;  // of a kernel, spin or copy
    Load load;
};

struct Operation {
    Work work;
    std::uint64_t called_ns{0};
    std::atomic<std::uint64_t>* address{nullptr};     // of a write
    const std::atomic<std::uint32_t>* gate{nullptr};  // of a wait
    std::uint64_t value{0};                           // written, or the mask of a wait
    std::uint32_t stream{0};                          // kWaitEvent: until that stream has completed `value`
};

struct Stream {
    std::uint32_t client;
    std::uint32_t channel;
    std::deque<Operation> queue;
    std::uint64_t submitted{0}, completed{0};
    double remaining_ns{0};
    std::uint64_t starts_at_ns{0};  // the head, at the earliest
    std::uint64_t began_ns{0};
    double slow{1};  // by what the head is slowed down now
    bool running{false};
    bool held{false};     // by who chooses; see Choice
    bool blocked{false};  // the head waits for a word
};

struct DeviceSettings {
    double clock_swing{0.2};     // the clock changes by up to this share, every 50 ms
    double most_hidden{0.15};    // of the unknown factors between pairs of clients
    std::uint64_t gap_ns{1600};  // between two kernels of a stream
    std::uint64_t memop_ns{1300};
    std::uint64_t visible_ns{5000};  // until a word written by a host is seen, at most
    std::uint64_t block_ns{20'000};  // until the blocks have ended that a kernel meets
};

// What a client has of the multiprocessors.
struct Standing {
    std::uint32_t share_permille{1000};
    bool prior{false};
};

constexpr std::size_t kQueue = 1000;  // operations pending in a stream; a launch beyond blocks its caller

// What runs in one moment, told to whoever measures.
struct Running {
    std::uint32_t client;
    Load load;
    std::uint64_t called_ns;
    bool begun;         // it has run for a while
    double share{1};    // of its speed, that its client's multiprocessors leave
    bool first{false};  // it has priority, and the blocks that it met have ended
};

// For models that hold work back by magic: of what could run now, the clients that may, as bits; and for all
// but client 0 the share of its speed at which each kernel runs, and of the multiprocessors that it may use.
struct Chosen {
    std::uint64_t clients{~std::uint64_t{0}};
    double share{1};
    std::uint32_t share_permille{1000};
};
using Choice = std::function<Chosen(const std::vector<Running>&)>;

class Device {
   public:
    Device(const DeviceSettings& settings, std::uint32_t clients, std::uint64_t now_ns);

    std::uint32_t open_stream(std::uint32_t client);
    void set_standing(std::uint32_t client, const Standing& standing) { standings_[client] = standing; }
    void submit(std::uint32_t stream, const Operation& operation);
    bool is_full(std::uint32_t stream) const { return streams_[stream].queue.size() >= kQueue; }
    std::uint64_t submitted(std::uint32_t stream) const { return streams_[stream].submitted; }
    bool is_done(std::uint32_t stream, std::uint64_t count) const {
        return streams_[stream].completed >= count;
    }
    bool is_idle(std::uint32_t client) const;

    // A host has changed words that streams may wait for: to be called after each action of a host.
    void watch(const std::atomic<std::uint32_t>* gate);
    void look_at_gates();

    // Starts what can start and returns when the next operation ends or becomes ready; UINT64_MAX for never.
    std::uint64_t next_ns();
    // Lets time pass, no further than `next_ns`.
    void pass_until(std::uint64_t time_ns);
    const std::vector<Running>& running() const { return running_; }
    double done_ns(std::uint32_t client) const { return done_ns_[client]; }  // of work, as if alone
    std::uint64_t now_ns() const { return now_ns_; }

    void choose_by(Choice choice) { choice_ = std::move(choice); }
    double clock() const { return clock_; }
    // By what one of the kernels that run together is slowed down beyond its own share, at a clock of 1.
    double slowdown(const std::vector<Running>& together, bool first = false) const;

   private:
    struct Gate {
        const std::atomic<std::uint32_t>* word;
        std::uint32_t seen, next;
        std::uint64_t changes_at_ns;
    };

    void start(Stream& stream);
    void finish(Stream& stream);
    void hold_back(const Chosen& chosen);
    bool channel_blocked(const Stream& stream) const;
    bool gate_open(const Operation& wait) const;

    DeviceSettings settings_;
    std::uint64_t now_ns_, clock_changes_ns_;
    double clock_{1};
    std::vector<Stream> streams_;
    std::vector<std::vector<double>> hidden_;
    std::vector<Standing> standings_;
    std::vector<Gate> gates_;
    std::vector<Running> running_;
    std::vector<double> done_ns_;
    Choice choice_;
    std::mt19937_64 random_, clocks_;  // the clocks are the same whatever the arm does
};

}  // namespace hostile
