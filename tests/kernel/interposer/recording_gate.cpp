// A gate that writes down what it is told, one line per call, into the file GATE_LOG names. It makes no
// manager necessary, so that the interposer's side of the contract can be tested alone.
//
// GATE_COST="ns compute bandwidth" is the answer of every look-up; GATE_SAMPLE=1 samples every launch.
// GATE_SIGNALS=1 gives memory for the GPU's signals, and =2 that of a manager that came after. With GATE_SHUT
// the gate in it is shut at the next call that asks for it, a launch's.
// Without GATE_LOG nothing is done: for measuring the interposer itself.

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>

#include "kernel_intercept/gate/gate.hpp"
#include "kernel_intercept/shared/signals.hpp"

namespace explsched::gate {
namespace {

__attribute__((format(printf, 1, 2))) void write_line(const char* format, ...) noexcept {
    const char* path = std::getenv("GATE_LOG");
    if (path == nullptr) return;
    char line[1024];
    va_list arguments;
    va_start(arguments, format);
    const int length = std::vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    const int file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (file < 0 || write(file, line, static_cast<std::size_t>(length)) != length) std::abort();
    close(file);
}

// Of two managers, of which the second has given us another slot.
using ManagerSignals = std::array<explsched::shared::ClientSignals, 2>;
std::array<std::atomic<ManagerSignals*>, 2> g_signals{};

ManagerSignals& signals_of(std::size_t manager) noexcept {
    ManagerSignals* made = g_signals[manager].load();
    if (made != nullptr) return *made;
    void* const memory =
        mmap(nullptr, sizeof(ManagerSignals), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) std::abort();
    if (g_signals[manager].compare_exchange_strong(made, static_cast<ManagerSignals*>(memory)))
        return *static_cast<ManagerSignals*>(memory);
    munmap(memory, sizeof(ManagerSignals));  // another thread was first
    return *made;
}

std::atomic<std::uint64_t> g_boundaries{0};

// GATE_SIGNALS: a boundary before each launch of a stream that is counted; its number is what is done.
Boundary boundary_for(int stream) noexcept {
    if (stream == kUncounted) return {};
    return {true, false, ++g_boundaries};
}

// GATE_SHARES: what a timing says of the shares, too.
void write_shares(const Sample& sample) noexcept {
    if (std::getenv("GATE_SHARES") == nullptr) return;
    write_line("shares %u %u\n", sample.cost.compute_permille, sample.cost.bandwidth_permille);
}

}  // namespace

void attach(int ordinal, const GpuIdentity& gpu) noexcept {
    write_line("attach %d cc %u sms %u\n", ordinal, gpu.compute_capability, gpu.multiprocessors);
}

bool manages(int) noexcept { return true; }

KernelCost lookup(std::uint64_t, const KernelCost& estimate) noexcept {
    const char* text = std::getenv("GATE_COST");
    unsigned long ns = 0;
    KernelCost cost{};
    if (text == nullptr ||
        std::sscanf(text, "%lu %u %u", &ns, &cost.compute_permille, &cost.bandwidth_permille) != 3) {
        return estimate;
    }
    cost.gpu_ns = ns;
    return cost;
}

bool sampling_due(std::uint64_t) noexcept { return std::getenv("GATE_SAMPLE") != nullptr; }

Decision admit(int ordinal, int stream, const KernelCost& cost, Patience patience) noexcept {
    write_line("%s %d %lu %u %u\n", patience == Patience::kMayWait ? "admit" : "charge", ordinal,
               static_cast<unsigned long>(cost.gpu_ns), cost.compute_permille, cost.bandwidth_permille);
    return {Admission::kGranted, boundary_for(stream)};
}

Boundary tail(int ordinal, int stream) noexcept {
    write_line("tail %d %d\n", ordinal, stream);
    return boundary_for(stream);
}

SignalMemory signals(int) noexcept {
    // Only where a test asks for it: without memory to write to, all streams are uncounted.
    const char* manager = std::getenv("GATE_SIGNALS");
    if (manager == nullptr) return {};
    const std::size_t slot = *manager == '2' ? 1 : 0;
    ManagerSignals& memory = signals_of(slot);
    explsched::shared::ClientSignals& own = memory[slot];
    own.gate = std::getenv("GATE_SHUT") == nullptr ? explsched::shared::kOpen : explsched::shared::kClosure;
    const auto at = [&memory](const void* word) {
        return static_cast<std::size_t>(static_cast<const char*>(word) -
                                        reinterpret_cast<const char*>(&memory));
    };
    return {&memory,        sizeof(memory),         at(&own.gate),
            at(&own.probe), at(&own.lines[0].done), sizeof(explsched::shared::Line)};
}

void collective_launched(int) noexcept {}
void tell(const char* text) noexcept { write_line("told %s", text); }
void looked_up(bool routed) noexcept {
    if (!routed) write_line("not routed\n");
}
bool is_best_effort() noexcept { return std::getenv("GATE_BEST_EFFORT") != nullptr; }
bool graphs_wait(int) noexcept { return std::getenv("GATE_GRAPHS_WAIT") != nullptr; }

void signals_pinned(int ordinal) noexcept { write_line("pinned %d\n", ordinal); }
void signals_work(int ordinal) noexcept { write_line("signals %d\n", ordinal); }
bool open_stream(int ordinal, int stream) noexcept {
    write_line("stream %d %d\n", ordinal, stream);
    return true;
}
void abandon_stream(int ordinal, int stream) noexcept { write_line("abandon %d %d\n", ordinal, stream); }

void drained(int ordinal) noexcept { write_line("drained %d\n", ordinal); }

void record(int ordinal, const Sample& sample) noexcept {
    write_line("record %d %s %lu\n", ordinal, sample.name, static_cast<unsigned long>(sample.cost.gpu_ns));
    write_shares(sample);
}

void reset_after_fork() noexcept { write_line("reset\n"); }

}  // namespace explsched::gate
