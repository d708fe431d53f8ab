// A gate that writes down what it is told, one line per call, into the file GATE_LOG names. It makes no
// manager necessary, so that the interposer's side of the contract can be tested alone.
//
// GATE_COST="ns compute bandwidth" is the answer of every look-up; GATE_SAMPLE=1 samples every launch.
// Without GATE_LOG nothing is done: for measuring the interposer itself.

#include <fcntl.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>

#include "kernel_intercept/gate/gate.hpp"

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

Admission admit(int ordinal, const KernelCost& cost) noexcept {
    write_line("admit %d %lu %u %u\n", ordinal, static_cast<unsigned long>(cost.gpu_ns),
               cost.compute_permille, cost.bandwidth_permille);
    return Admission::kGranted;
}

void charge(int ordinal, const KernelCost& cost) noexcept {
    write_line("charge %d %lu %u %u\n", ordinal, static_cast<unsigned long>(cost.gpu_ns),
               cost.compute_permille, cost.bandwidth_permille);
}

// These follow every admit and charge: only noise here.
void before_driver(int) noexcept {}
void after_driver(int) noexcept {}

void drained(int ordinal) noexcept { write_line("drained %d\n", ordinal); }

void record(int ordinal, const Sample& sample) noexcept {
    write_line("record %d %s %lu\n", ordinal, sample.name, static_cast<unsigned long>(sample.cost.gpu_ns));
}

void reset_after_fork() noexcept { write_line("reset\n"); }

}  // namespace explsched::gate
