#include "kernel_intercept/gate/gate.hpp"

#include <cstring>

#include "kernel_intercept/gate/admission.hpp"
#include "kernel_intercept/gate/link.hpp"
#include "kernel_intercept/gate/settings.hpp"
#include "kernel_intercept/gate/watchdog.hpp"
#include "kernel_intercept/shared/clock.hpp"

namespace explsched::gate {

namespace {

constexpr int kAttachPatienceMs = 100;

// Per process: how often each key was asked for. Keys that share a counter are sampled less often.
constexpr std::uint32_t kCounters = 4096;
constexpr std::uint32_t kWarmUpLaunches = 1;  // the first launch may load its module
constexpr std::uint32_t kFirstSamples = 8;
constexpr std::uint32_t kSampleEvery = 64, kSeldom = 1024;  // the latter once a key is well known

std::array<std::atomic<std::uint32_t>, kCounters> asked;
std::atomic<std::uint32_t> look_ups{0}, routed_look_ups{0};
std::atomic<std::uint64_t> estimates{0};  // paid for keys being learnt; what threads lose does not matter
std::atomic<Link*> newest{nullptr};  // whose profile table is used; all of a manager's clients see the same

Link* link_of(int ordinal) {
    return ordinal >= 0 && ordinal < kMaxGpus ? &links[static_cast<std::size_t>(ordinal)] : nullptr;
}

// The page, while this process is a client of its manager. A manager that is only late does no harm to what
// `group` decides, which clients do without it: the gate is opened by the watchdog then, and the bounds hold.
shared::Page* served_page(Link& link, std::uint64_t now_ns) {
    shared::Page* page = link.own_page();
    if (page != nullptr && manager_alive(page->control, now_ns)) return page;
    if (page != nullptr) {
        shared::Slot& slot = page->slots[link.slot.load(std::memory_order_relaxed)];
        slot.counters.unmanaged.fetch_add(1, std::memory_order_relaxed);
    }
    link.recover(now_ns);
    const bool bounded = page != nullptr && page->control.policy == shared::Policy::kGroup &&
                         !is_high(*page, link.slot.load()) &&
                         page->control.heartbeat_ns.load(std::memory_order_relaxed) != 0;
    return bounded ? link.own_page() : nullptr;
}

// What this process has with the manager of a GPU; false where it has nothing.
struct Registration {
    Link* link;
    shared::Page* page;
    shared::Signals* signals;
    std::uint32_t slot;

    explicit Registration(int ordinal)
        : link(link_of(ordinal)),
          page(link == nullptr ? nullptr : link->own_page()),
          signals(link == nullptr ? nullptr : link->signals.load(std::memory_order_acquire)),
          slot(link == nullptr ? 0 : link->slot.load(std::memory_order_relaxed)) {}
    explicit operator bool() const { return page != nullptr && signals != nullptr; }

    shared::Slot& own() const { return page->slots[slot]; }
    shared::Line& line(int stream) const {
        return signals->clients[slot].lines[static_cast<std::size_t>(stream)];
    }
    CountedStream& counted(int stream) const { return link->streams[static_cast<std::size_t>(stream)]; }
};

void tell_routes(int ordinal) {
    const Registration mine(ordinal);
    if (!mine) return;
    shared::Counters& counters = mine.own().counters;
    counters.look_ups.store(look_ups.load(std::memory_order_relaxed), std::memory_order_relaxed);
    counters.routed.store(routed_look_ups.load(std::memory_order_relaxed), std::memory_order_relaxed);
}

}  // namespace

std::array<Link, kMaxGpus> links;

void attach(int ordinal, const GpuIdentity& gpu) noexcept {
    Link* link = link_of(ordinal);
    if (link == nullptr || link->wanted()) return;
    link->attach(gpu, kAttachPatienceMs);
    tell_routes(ordinal);
    newest.store(link, std::memory_order_release);
}

bool manages(int ordinal) noexcept {
    const Link* link = link_of(ordinal);
    return link != nullptr && link->wanted();
}

KernelCost lookup(std::uint64_t key_hash, const KernelCost& estimate) noexcept {
    const Link* link = newest.load(std::memory_order_acquire);
    const shared::Table* table = link == nullptr ? nullptr : link->table.load(std::memory_order_acquire);
    const shared::TableEntry* entry = table == nullptr ? nullptr : shared::place_of(table->entries, key_hash);
    if (entry == nullptr || entry->key.load(std::memory_order_acquire) != key_hash) return estimate;
    const std::uint64_t cost = entry->cost.load(std::memory_order_relaxed);
    return cost == 0 ? estimate : shared::unpack_cost(cost);
}

bool sampling_due(std::uint64_t key_hash) noexcept {
    Link* link = newest.load(std::memory_order_acquire);
    if (link == nullptr || link->page.load(std::memory_order_relaxed) == nullptr) return false;
    std::atomic<std::uint32_t>& asks = asked[key_hash % kCounters];
    const std::uint32_t count = asks.load(std::memory_order_relaxed);
    asks.store(count + 1, std::memory_order_relaxed);  // what threads lose to each other does not matter
    // What is unknown after that stays so, mostly: it is never timed.
    if (count <= kSampleEvery && lookup(key_hash, {}).gpu_ns == 0)
        estimates.store(estimates.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    return (count >= kWarmUpLaunches && count < kWarmUpLaunches + kFirstSamples) ||
           (count != 0 && count % (count < kSeldom ? kSampleEvery : kSeldom) == 0);
}

Decision admit(int ordinal, int stream, const KernelCost& cost, Patience patience) noexcept {
    Link* link = link_of(ordinal);
    if (link == nullptr || !link->wanted()) return {};
    const std::uint64_t now_ns = shared::now_ns();
    shared::Page* page = served_page(*link, now_ns);
    if (page == nullptr) return {};
    Decision decision = admit_managed(*link, *page, stream, cost, patience, now_ns);
    if (!manager_alive(page->control, now_ns)) decision.admission = Admission::kPassThrough;
    return decision;
}

Boundary tail(int ordinal, int stream) noexcept {
    const Registration mine(ordinal);
    if (!mine || stream == kUncounted) return {};
    const StreamLock lock(mine.counted(stream).taken);
    if (!lock.held()) return {};
    const Boundary boundary = mine.counted(stream).batches.tail();
    if (boundary.writes) mine.line(stream).told.store(boundary.done_ns, std::memory_order_relaxed);
    return boundary;
}

bool is_best_effort() noexcept {
    const Settings settings = settings_of_environment();
    return settings.socket_path[0] != '\0' && settings.hello.priority == shared::Class::kBestEffort;
}

SignalMemory signals(int ordinal) noexcept {
    const Registration mine(ordinal);
    if (!mine) return {};
    const shared::ClientSignals& own = mine.signals->clients[mine.slot];
    const auto offset_of = [&mine](const void* word) {
        return static_cast<std::size_t>(static_cast<const char*>(word) -
                                        reinterpret_cast<const char*>(mine.signals));
    };
    return {mine.signals,          sizeof(*mine.signals),         offset_of(&own.gate),
            offset_of(&own.probe), offset_of(&own.lines[0].done), sizeof(shared::Line)};
}

void signals_pinned(int ordinal) noexcept {
    if (Link* link = link_of(ordinal)) link->pinned.store(true);
}

void signals_work(int ordinal) noexcept {
    if (const Registration mine{ordinal}) mine.own().client.reports.store(1, std::memory_order_relaxed);
}

void collective_launched(int ordinal) noexcept {
    const Registration mine(ordinal);
    if (!mine || mine.own().counters.collectives.fetch_add(1, std::memory_order_seq_cst) != 0) return;
    bool others = false;
    shared::each_bit(mine.page->control.occupied.load() & ~(std::uint64_t{1} << mine.slot),
                     [&](std::uint32_t slot) {
                         others = others || mine.page->slots[slot].counters.collectives.load() != 0;
                     });
    if (others)
        tell(
            "explsched: two processes with collectives (NCCL) share this GPU: under CUDA MPS each may wait "
            "for the other for ever (NVIDIA/nccl issues 231 and 574). Give one of them other GPUs\n");
}

bool graphs_wait(int ordinal) noexcept {
    const Registration mine(ordinal);
    return mine && mine.page->control.policy == shared::Policy::kGroup && !is_high(*mine.page, mine.slot) &&
           start_watchdog();
}

bool open_stream(int ordinal, int stream) noexcept {
    const Registration mine(ordinal);
    if (!mine) return true;
    shared::Line& line = mine.line(stream);
    if (line.done.load() < line.told.load()) return false;
    const StreamLock lock(mine.counted(stream).taken);
    line.told.store(line.issued.load());
    line.done.store(line.issued.load());
    if (lock.held()) mine.counted(stream).batches.start_at(line.issued.load());
    return true;
}

void abandon_stream(int ordinal, int stream) noexcept {
    const Registration mine(ordinal);
    if (!mine) return;
    shared::Line& line = mine.line(stream);
    line.done.store(line.told.load());
}

void looked_up(bool routed) noexcept {
    look_ups.fetch_add(1, std::memory_order_relaxed);
    if (routed) routed_look_ups.fetch_add(1, std::memory_order_relaxed);
    for (int i = 0; i < kMaxGpus; ++i) tell_routes(i);
}

void drained(int ordinal) noexcept {
    const Registration mine(ordinal);
    if (!mine) return;
    const shared::Control& control = mine.page->control;
    shared::Slot& slot = mine.own();
    const std::uint64_t launches = slot.counters.launches.load(std::memory_order_relaxed);
    if (mine.link->drained_launches.exchange(launches, std::memory_order_relaxed) == launches) return;
    shared::settle(mine.signals->clients[mine.slot]);
    // A period with an estimate that is soon replaced tells of no slowdown; one that stays cancels out.
    const std::uint64_t used = estimates.load(std::memory_order_relaxed);
    const bool measured = mine.link->drained_estimates.exchange(used, std::memory_order_relaxed) == used;
    if (control.policy == shared::Policy::kQuota) {
        const std::uint64_t issued_ns = shared::progress_of(mine.signals->clients[mine.slot]).issued_ns;
        const shared::BusyTime busy{shared::now_ns() - slot.counters.busy_since_ns.load(),
                                    issued_ns - slot.counters.drained_issued_ns.exchange(issued_ns)};
        if (slot.client.busy.exchange(shared::kIdle) != shared::kIdle && measured)
            slot.counters.busy_time.fetch_add(shared::pack_busy(busy), std::memory_order_relaxed);
    }
    slot.counters.drains.fetch_add(1, std::memory_order_relaxed);
    // Where the GPU reports, the manager sees the end by itself.
    const bool unseen = slot.client.busy.load() != 0 && slot.client.reports.load() == 0;
    if (control.waiting.load(std::memory_order_relaxed) != 0 || unseen) mine.link->notify();
}

void record(int ordinal, const Sample& sample) noexcept {
    const Registration mine(ordinal);
    if (!mine) return;
    shared::SampleRing& ring = mine.own().ring;
    const bool taken = mine.link->recording.exchange(true, std::memory_order_acquire);
    const std::uint64_t written = ring.written.load(std::memory_order_relaxed);
    if (taken || written - ring.read.load(std::memory_order_acquire) >= shared::kRingSamples) {
        ring.dropped.fetch_add(1, std::memory_order_relaxed);
    } else {
        shared::RingSample& entry = ring.samples[written % shared::kRingSamples];
        entry.key = sample.key;
        entry.cost = sample.cost;
        const std::size_t length = sample.name == nullptr ? 0 : strnlen(sample.name, entry.name.size() - 1);
        if (length != 0) std::memcpy(entry.name.data(), sample.name, length);
        entry.name[length] = '\0';
        ring.written.store(written + 1, std::memory_order_release);
    }
    if (!taken) mine.link->recording.store(false, std::memory_order_release);
}

void reset_after_fork() noexcept {
    newest = nullptr;
    forget_watchdog();
    for (Link& link : links) link.forget();
}

}  // namespace explsched::gate
