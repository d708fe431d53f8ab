// What the processes that share a virtual GPU share: the layout of the file that FAKECUDA_GPU names.
//
// A process may be killed while it changes any of this. Counters are therefore published last (`submitted`
// after the task is written, `completed` after it ended), so that whoever comes next finds a valid state, at
// most one step behind.
#pragma once

#include <pthread.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace fakecuda::gpu {

constexpr std::uint64_t kMagic = 0x75706765'6b616608;  // changes with the layout
constexpr std::size_t kMaxProcesses = 64;
constexpr std::size_t kMaxStreams = 256;
constexpr std::size_t kMaxEvents = 16384;
constexpr std::size_t kQueueDepth = 1024;  // as in CUDA, a launch waits when about a thousand are pending
constexpr std::size_t kMaxDependencies = 4;
constexpr std::int32_t kNone = -1;

// What a kernel takes from the GPU while it runs there alone. Shares in thousandths of the whole GPU.
struct Work {
    double duration_ns{0};
    std::uint32_t compute_permille{0};
    std::uint32_t bandwidth_permille{0};
    std::array<char, 48> name{};  // empty: no kernel, only a mark in the queue (an event, a dependency)
};

// "Not before `stream` has completed `count` tasks."
struct Dependency {
    std::int32_t stream{kNone};
    std::uint64_t count{0};
};

// What the GPU does to the memory of the process that submitted it. Other processes cannot: a thread of its
// own sees to it (see VirtualGpu::serve_memory). A wait ends when it has; a write ends at once, and
// can be seen a little later.
struct MemoryAccess {
    enum class Kind : std::int32_t { kNone, kWrite, kWrite32, kWait } kind{Kind::kNone};
    std::uint64_t address{0};
    std::uint64_t value{0};  // written; of a wait, the bits of which one must be set
};

struct Task {
    Work work;
    MemoryAccess memory;
    double remaining_ns;                     // of work.duration_ns
    std::int64_t called_ns;                  // the driver's call for it began; kNone of a mark
    std::int64_t admitted_ns;                // and had the GPU to itself, to put it into the queue
    std::int64_t started_ns;                 // kNone while it waits
    std::uint32_t running_compute_permille;  // sum over all that ran when it started, itself included
    std::uint32_t running_bandwidth_permille;
    std::int32_t event;  // gets the time when this task has ended, or kNone
    std::array<Dependency, kMaxDependencies> after;
};

// Task number n (from 0) sits in queue[n % kQueueDepth]. The head, number `completed`, runs or waits to run.
// The numbers go on when another stream gets the place: some may wait for work of the former one.
struct Stream {
    std::int32_t process{kNone};
    std::uint64_t submitted{0};
    std::uint64_t completed{0};
    std::array<MemoryAccess, 4> written{};  // ended, and not to be seen yet: the last one for each address
    std::array<Task, kQueueDepth> queue;
};

struct Event {
    std::int32_t process{kNone};
    std::int64_t ended_ns{kNone};
};

struct Process {
    std::int32_t pid{0};
    std::uint64_t memory_bytes{0};  // held on the device
};

enum class Sharing : std::int32_t { kConcurrent = 1, kTimeSliced = 2 };  // with MPS, and without

struct Settings {
    Sharing sharing{Sharing::kConcurrent};
    std::int32_t multiprocessors{132};
    double slice_ns{2e6};  // of a process's turn when time-sliced
    double time_scale{1};  // real seconds per second of the virtual GPU
    std::int32_t logs{0};  // 1: every ended kernel is a line in FAKECUDA_GPU's file name + ".log"
};

struct State {
    std::uint64_t magic;
    pthread_mutex_t mutex;  // robust and shared
    Settings settings;
    std::int64_t epoch_ns;  // CLOCK_MONOTONIC at time 0 of the virtual GPU
    std::int64_t now_ns;    // the model has been computed up to here
    std::int32_t turn;      // time-sliced: the process that runs
    std::int64_t turn_ends_ns;
    std::int64_t census_due_ns;  // CLOCK_MONOTONIC: look for dead processes then
    std::int32_t stream_limit;   // streams from here on were never used
    std::array<Process, kMaxProcesses> processes;
    std::array<Event, kMaxEvents> events;
    std::array<Stream, kMaxStreams> streams;
};

inline bool is_pending(const Stream& stream) { return stream.completed < stream.submitted; }
inline Task& head(Stream& stream) { return stream.queue[stream.completed % kQueueDepth]; }
inline const Task& head(const Stream& stream) { return stream.queue[stream.completed % kQueueDepth]; }

}  // namespace fakecuda::gpu
