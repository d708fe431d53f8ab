#include "tests/kernel/fakecuda/gpu/fluid.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>

namespace fakecuda::gpu {
namespace {

constexpr double kDoneNs = 0.5;  // rounding of the step to whole ns leaves up to this much

bool is_mark(const Task& task) {
    return task.work.name[0] == '\0' && task.memory.kind != MemoryAccess::Kind::kWait;
}

bool dependencies_met(const State& state, const Task& task) {
    return std::all_of(task.after.begin(), task.after.end(), [&](const Dependency& on) {
        return on.stream == kNone || state.streams[on.stream].completed >= on.count;
    });
}

bool may_run(const State& state, const Stream& stream) {
    return is_pending(stream) && dependencies_met(state, head(stream));
}

bool has_turn(const State& state, const Stream& stream) {
    return state.settings.sharing == Sharing::kConcurrent || stream.process == state.turn;
}

bool is_running(const State& state, const Stream& stream) {
    return is_pending(stream) && head(stream).started_ns != kNone && has_turn(state, stream);
}

struct Load {
    std::uint32_t compute_permille{0};
    std::uint32_t bandwidth_permille{0};
    bool any{false};

    double slowdown() const { return std::max({1000U, compute_permille, bandwidth_permille}) / 1000.0; }
};

Load load(const State& state) {
    Load sum;
    for (std::int32_t i = 0; i < state.stream_limit; ++i) {
        if (const Stream& stream = state.streams[i]; is_running(state, stream)) {
            sum.compute_permille += head(stream).work.compute_permille;
            sum.bandwidth_permille += head(stream).work.bandwidth_permille;
            sum.any = true;
        }
    }
    return sum;
}

// Streams write to few words, each time a larger value.
void keep_write(Stream& stream, const MemoryAccess& write) {
    for (MemoryAccess& kept : stream.written) {
        if (kept.kind != MemoryAccess::Kind::kNone && kept.address != write.address) continue;
        kept = write;
        return;
    }
}

void end_head(State& state, std::int32_t index, std::vector<EndedKernel>& ended) {
    Stream& stream = state.streams[index];
    const Task& task = head(stream);
    if (task.event != kNone) state.events[task.event].ended_ns = state.now_ns;
    if (task.memory.kind == MemoryAccess::Kind::kWrite || task.memory.kind == MemoryAccess::Kind::kWrite32)
        keep_write(stream, task.memory);
    if (!is_mark(task)) ended.push_back({state.processes[stream.process].pid, index, state.now_ns, task});
    ++stream.completed;
}

// The process after `turn`, in a circle, that has something to run; kNone if none has.
std::int32_t next_turn(const State& state) {
    std::int32_t best = kNone;
    for (std::int32_t i = 0; i < state.stream_limit; ++i) {
        const Stream& stream = state.streams[i];
        if (!may_run(state, stream)) continue;
        const auto distance = [&](std::int32_t p) {
            const auto all = static_cast<std::int32_t>(kMaxProcesses);
            return (p - state.turn - 1 + all) % all;
        };
        if (best == kNone || distance(stream.process) < distance(best)) best = stream.process;
    }
    return best;
}

bool turn_has_work(const State& state) {
    for (std::int32_t i = 0; i < state.stream_limit; ++i) {
        const Stream& stream = state.streams[i];
        if (stream.process == state.turn && may_run(state, stream)) return true;
    }
    return false;
}

void give_turn(State& state) {
    if (state.settings.sharing == Sharing::kConcurrent) return;
    if (state.now_ns < state.turn_ends_ns && turn_has_work(state)) return;
    if (const std::int32_t next = next_turn(state); next != kNone) {
        state.turn = next;
        state.turn_ends_ns = state.now_ns + static_cast<std::int64_t>(state.settings.slice_ns);
    }
}

// Marks end as soon as they are reached, which may let other streams go on: repeat until nothing changes.
void pass_marks(State& state, std::vector<EndedKernel>& ended) {
    for (bool changed = true; changed;) {
        changed = false;
        for (std::int32_t i = 0; i < state.stream_limit; ++i) {
            while (may_run(state, state.streams[i]) && is_mark(head(state.streams[i]))) {
                end_head(state, i, ended);
                changed = true;
            }
        }
    }
}

void start_kernels(State& state) {
    for (std::int32_t i = 0; i < state.stream_limit; ++i) {
        Stream& stream = state.streams[i];
        if (!may_run(state, stream) || !has_turn(state, stream) || head(stream).started_ns != kNone) continue;
        if (head(stream).memory.kind == MemoryAccess::Kind::kWait) continue;
        Task& task = head(stream);
        task.started_ns = state.now_ns;
        const Load now = load(state);
        task.running_compute_permille = now.compute_permille;
        task.running_bandwidth_permille = now.bandwidth_permille;
    }
}

double least_remaining_ns(const State& state) {
    double least = std::numeric_limits<double>::infinity();
    for (std::int32_t i = 0; i < state.stream_limit; ++i) {
        if (is_running(state, state.streams[i])) least = std::min(least, head(state.streams[i]).remaining_ns);
    }
    return least;
}

void run_for(State& state, std::int64_t step_ns, double slowdown, std::vector<EndedKernel>& ended) {
    std::array<std::int32_t, kMaxStreams> done;
    std::size_t done_count = 0;
    for (std::int32_t i = 0; i < state.stream_limit; ++i) {
        if (!is_running(state, state.streams[i])) continue;
        Task& task = head(state.streams[i]);
        task.remaining_ns -= static_cast<double>(step_ns) / slowdown;
        if (task.remaining_ns < kDoneNs) done[done_count++] = i;
    }
    state.now_ns += step_ns;
    for (std::size_t i = 0; i < done_count; ++i) end_head(state, done[i], ended);
}

bool is_over(const MemoryAccess& wait) {
    return (reinterpret_cast<const std::atomic<std::uint32_t>*>(wait.address)->load() & wait.value) != 0;
}

void carry_out(const MemoryAccess& write) {
    if (write.kind == MemoryAccess::Kind::kWrite) {
        reinterpret_cast<std::atomic<std::uint64_t>*>(write.address)->store(write.value);
    } else {
        reinterpret_cast<std::atomic<std::uint32_t>*>(write.address)
            ->store(static_cast<std::uint32_t>(write.value));
    }
}

}  // namespace

bool serve_memory(State& state, std::int32_t process, std::vector<EndedKernel>& ended) {
    bool pending = false;
    for (std::int32_t i = 0; i < state.stream_limit; ++i) {
        Stream& stream = state.streams[i];
        if (stream.process != process) continue;
        while (may_run(state, stream) && head(stream).memory.kind == MemoryAccess::Kind::kWait &&
               is_over(head(stream).memory)) {
            ++stream.completed;
            pass_marks(state, ended);
            start_kernels(state);
        }
        for (MemoryAccess& write : stream.written) {
            if (write.kind == MemoryAccess::Kind::kNone) continue;
            carry_out(write);
            write = {};
        }
        for (std::uint64_t n = stream.completed; n < stream.submitted && !pending; ++n)
            pending = stream.queue[n % kQueueDepth].memory.kind != MemoryAccess::Kind::kNone;
    }
    return pending;
}

void advance(State& state, std::int64_t until_ns, std::vector<EndedKernel>& ended) {
    for (;;) {
        pass_marks(state, ended);
        give_turn(state);
        start_kernels(state);
        const Load running = load(state);
        if (!running.any) state.now_ns = std::max(state.now_ns, until_ns);
        if (state.now_ns >= until_ns) return;
        const auto to_next_end =
            static_cast<std::int64_t>(std::ceil(least_remaining_ns(state) * running.slowdown()));
        std::int64_t step = std::min(std::max<std::int64_t>(to_next_end, 1), until_ns - state.now_ns);
        if (state.settings.sharing == Sharing::kTimeSliced && state.turn_ends_ns > state.now_ns) {
            step = std::min(step, state.turn_ends_ns - state.now_ns);
        }
        run_for(state, step, running.slowdown(), ended);
    }
}

std::int64_t earliest_end_ns(const State& state, std::int32_t index, std::uint64_t count) {
    // Two bounds, both never late: this stream's work at full speed, and the next end of any kernel that runs
    // now.
    const Stream& stream = state.streams[index];
    double own_ns = 0;
    for (std::uint64_t n = stream.completed; n < count; ++n)
        own_ns += stream.queue[n % kQueueDepth].memory.kind != MemoryAccess::Kind::kNone
                      ? 0
                      : stream.queue[n % kQueueDepth].remaining_ns;
    const Load running = load(state);
    double next_ns = running.any ? least_remaining_ns(state) * running.slowdown() : 0;
    if (state.settings.sharing == Sharing::kTimeSliced) {
        next_ns = std::min(next_ns, static_cast<double>(state.turn_ends_ns - state.now_ns));
    }
    return state.now_ns + static_cast<std::int64_t>(std::ceil(std::max({own_ns, next_ns, 0.0})));
}

void bury(State& state, std::int32_t process) {
    for (Stream& stream : state.streams) {
        if (stream.process != process) continue;
        stream.completed = stream.submitted;
        stream.process = kNone;
    }
    for (Event& event : state.events) {
        if (event.process == process) event.process = kNone;
    }
    state.processes[process] = Process{};
}

}  // namespace fakecuda::gpu
