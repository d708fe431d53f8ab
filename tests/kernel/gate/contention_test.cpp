// Several processes at once.

#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernel_intercept/gate/launch.hpp"
#include "tests/kernel/gate/check.hpp"
#include "tests/kernel/gate/shared_page.hpp"

using namespace explsched;
using namespace page_under_test;

namespace {

// Eight processes reserve at once: the summed load of what they hold never exceeds the caps.
void processes_never_exceed_the_caps_together() {
    constexpr int kProcesses = 8, kTries = 20'000;
    constexpr std::uint32_t kLoad = 300;  // three fit, four do not
    SharedPage memory;
    struct Tally {
        std::atomic<std::uint32_t> started, held, most, reserved, errors;
    };
    void* at = mmap(nullptr, sizeof(Tally), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    auto& tally = *new (at) Tally{};
    for (std::uint32_t slot = 0; slot < kProcesses; ++slot) memory.occupy(slot);
    for (std::uint32_t slot = 0; slot < kProcesses; ++slot) {
        if (fork() != 0) continue;
        tally.started.fetch_add(1);
        while (tally.started.load() < kProcesses) usleep(100);
        Timeline& line = memory.page.slots[slot].timeline;
        for (int i = 0; i < kTries; ++i) {
            if (!try_reserve(memory.page, slot, {kMs, kLoad, 10}, kNow).reserved()) continue;
            const std::uint32_t held = tally.held.fetch_add(1) + 1;
            std::uint32_t most = tally.most.load();
            while (held > most && !tally.most.compare_exchange_weak(most, held)) {
            }
            tally.reserved.fetch_add(1);
            if (i % 64 == 0) sched_yield();
            tally.held.fetch_sub(1);
            line.reserved.store(0);
        }
        _exit(0);
    }
    for (int status = 0; wait(&status) > 0;) CHECK(status == 0);
    CHECK(tally.started == kProcesses);
    CHECK(tally.most <= 3);
    CHECK(tally.most >= 1 && tally.reserved > 1000);
    for (std::uint32_t slot = 0; slot < kProcesses; ++slot)
        CHECK(memory.page.slots[slot].timeline.reserved == 0);
    munmap(at, sizeof(Tally));
}

// Eight processes spend from one credit, with refills at the same time: nothing is lost or made.
void credit_is_conserved() {
    constexpr int kProcesses = 8, kTries = 50'000;
    SharedPage memory;
    Slot& slot = memory.page.slots[0];
    slot.door.credit_ns = 1'000'000;
    std::int64_t added = 1'000'000;
    for (int i = 0; i < kProcesses; ++i) {
        if (fork() != 0) continue;
        for (int n = 0; n < kTries; ++n)
            gate::try_quota(slot, {100 + static_cast<std::uint64_t>(n % 7), 1000, 0}, kNow);
        _exit(0);
    }
    for (int n = 0; n < 2000; ++n) {
        slot.door.credit_ns.fetch_add(10'000);
        added += 10'000;
        if (n % 16 == 0) usleep(50);
    }
    for (int status = 0; wait(&status) > 0;) CHECK(status == 0);
    CHECK(slot.timeline.head > 0);
    CHECK(static_cast<std::int64_t>(slot.counters.charged_ns) + slot.door.credit_ns == added);
    CHECK(slot.timeline.pushed_ns == slot.counters.charged_ns);
}

}  // namespace

int main() {
    processes_never_exceed_the_caps_together();
    credit_is_conserved();
    return check::result();
}
