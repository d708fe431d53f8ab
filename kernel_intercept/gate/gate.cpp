#include "kernel_intercept/gate/gate.hpp"

#include <unistd.h>

#include <algorithm>
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
constexpr std::uint32_t kSampleEvery = 64;

std::array<Link, kMaxGpus> links;
std::array<std::atomic<std::uint32_t>, kCounters> asked;
std::atomic<std::uint32_t> look_ups{0}, routed_look_ups{0};
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
    const bool high = page != nullptr && (page->control.high.load() >> link.slot.load() & 1) != 0;
    const bool bounded = page != nullptr && page->control.policy == shared::Policy::kGroup && !high &&
                         page->control.heartbeat_ns.load(std::memory_order_relaxed) != 0;
    return bounded ? link.own_page() : nullptr;
}

Decision decide(int ordinal, int stream, const KernelCost& cost, Patience patience) {
    Link* link = link_of(ordinal);
    if (link == nullptr || !link->wanted()) return {};
    const std::uint64_t now_ns = shared::now_ns();
    shared::Page* page = served_page(*link, now_ns);
    if (page == nullptr) return {};
    Decision decision = admit_managed(*link, *page, stream, cost, patience, now_ns);
    if (!manager_alive(page->control, now_ns)) decision.admission = Admission::kPassThrough;
    return decision;
}

void tell_routes(const Link& link) {
    shared::Page* page = link.own_page();
    if (page == nullptr) return;
    shared::Counters& counters = page->slots[link.slot.load()].counters;
    counters.look_ups.store(look_ups.load(std::memory_order_relaxed), std::memory_order_relaxed);
    counters.routed.store(routed_look_ups.load(std::memory_order_relaxed), std::memory_order_relaxed);
}

void warn_of_collectives() {
    constexpr char kText[] =
        "explsched: two processes with collectives (NCCL) share this GPU: under CUDA MPS each may wait for "
        "the "
        "other for ever (NVIDIA/nccl issues 231 and 574). Give one of them other GPUs\n";
    if (write(STDERR_FILENO, kText, sizeof(kText) - 1) < 0) return;  // nobody reads it
}

}  // namespace

void attach(int ordinal, const GpuIdentity& gpu) noexcept {
    Link* link = link_of(ordinal);
    if (link == nullptr || link->wanted()) return;
    link->attach(gpu, kAttachPatienceMs);
    tell_routes(*link);
    newest.store(link, std::memory_order_release);
}

bool manages(int ordinal) noexcept {
    const Link* link = link_of(ordinal);
    return link != nullptr && link->wanted();
}

KernelCost lookup(std::uint64_t key_hash, const KernelCost& estimate) noexcept {
    const Link* link = newest.load(std::memory_order_acquire);
    const shared::Table* table = link == nullptr ? nullptr : link->table.load(std::memory_order_acquire);
    const shared::TableEntry* entry = table == nullptr ? nullptr : shared::find(*table, key_hash);
    const std::uint64_t cost = entry == nullptr ? 0 : entry->cost.load(std::memory_order_relaxed);
    return cost == 0 ? estimate : shared::unpack_cost(cost);
}

bool sampling_due(std::uint64_t key_hash) noexcept {
    Link* link = newest.load(std::memory_order_acquire);
    if (link == nullptr || link->page.load(std::memory_order_relaxed) == nullptr) return false;
    std::atomic<std::uint32_t>& asks = asked[key_hash % kCounters];
    const std::uint32_t count = asks.load(std::memory_order_relaxed);
    asks.store(count + 1, std::memory_order_relaxed);  // what threads lose to each other does not matter
    return (count >= kWarmUpLaunches && count < kWarmUpLaunches + kFirstSamples) ||
           (count != 0 && count % kSampleEvery == 0);
}

Decision admit(int ordinal, int stream, const KernelCost& cost) noexcept {
    return decide(ordinal, stream, cost, Patience::kMayWait);
}

Boundary charge(int ordinal, int stream, const KernelCost& cost) noexcept {
    return decide(ordinal, stream, cost, Patience::kMustNotWait).boundary;
}

Boundary tail(int ordinal, int stream) noexcept {
    Link* link = link_of(ordinal);
    if (link == nullptr || stream == kUncounted || link->own_page() == nullptr) return {};
    shared::Signals* memory = link->signals.load(std::memory_order_acquire);
    CountedStream& counted = link->streams[static_cast<std::size_t>(stream)];
    const StreamLock lock(counted.taken);
    if (memory == nullptr || !lock.held()) return {};
    const Boundary boundary = counted.batches.tail();
    shared::Line& line = memory->clients[link->slot.load()].lines[static_cast<std::size_t>(stream)];
    if (boundary.writes) line.told.store(boundary.done_ns, std::memory_order_relaxed);
    return boundary;
}

bool is_best_effort() noexcept {
    const Settings settings = settings_of_environment();
    return settings.socket_path[0] != '\0' && settings.priority == shared::Class::kBestEffort;
}

Signals signals(int ordinal) noexcept {
    const Link* link = link_of(ordinal);
    shared::Signals* memory = link == nullptr ? nullptr : link->signals.load(std::memory_order_acquire);
    if (memory == nullptr || link->own_page() == nullptr) return {};
    const shared::ClientSignals& own = memory->clients[link->slot.load(std::memory_order_relaxed)];
    const auto offset_of = [memory](const void* word) {
        return static_cast<std::size_t>(static_cast<const char*>(word) -
                                        reinterpret_cast<const char*>(memory));
    };
    return {memory,
            sizeof(*memory),
            offset_of(&own.gate),
            offset_of(&own.probe),
            offset_of(&own.lines[0].done),
            sizeof(shared::Line)};
}

void signals_pinned(int ordinal) noexcept {
    if (Link* link = link_of(ordinal)) link->pinned.store(true);
}

void signals_work(int ordinal) noexcept {
    Link* link = link_of(ordinal);
    shared::Page* page = link == nullptr ? nullptr : link->own_page();
    if (page != nullptr) page->slots[link->slot.load()].client.reports.store(1, std::memory_order_relaxed);
}

void collective_launched(int ordinal) noexcept {
    Link* link = link_of(ordinal);
    shared::Page* page = link == nullptr ? nullptr : link->own_page();
    if (page == nullptr) return;
    const std::uint32_t own = link->slot.load(std::memory_order_relaxed);
    if (page->slots[own].counters.collectives.fetch_add(1, std::memory_order_seq_cst) != 0) return;
    std::uint64_t others = page->control.occupied.load() & ~(std::uint64_t{1} << own);
    for (; others != 0; others &= others - 1) {
        if (page->slots[__builtin_ctzll(others)].counters.collectives.load(std::memory_order_seq_cst) != 0) {
            warn_of_collectives();
            return;
        }
    }
}

bool graphs_wait(int ordinal) noexcept {
    Link* link = link_of(ordinal);
    shared::Page* page = link == nullptr ? nullptr : link->own_page();
    if (page == nullptr || page->control.policy != shared::Policy::kGroup) return false;
    const bool high = (page->control.high.load() >> link->slot.load() & 1) != 0;
    return !high && start_watchdog();
}

void open_stream(int ordinal, int stream) noexcept {
    Link* link = link_of(ordinal);
    shared::Signals* memory = link == nullptr ? nullptr : link->signals.load(std::memory_order_acquire);
    if (memory == nullptr || link->own_page() == nullptr) return;
    shared::Line& line = memory->clients[link->slot.load()].lines[static_cast<std::size_t>(stream)];
    CountedStream& counted = link->streams[static_cast<std::size_t>(stream)];
    const StreamLock lock(counted.taken);
    line.told.store(line.issued.load());
    line.done.store(line.issued.load());
    if (lock.held()) counted.batches.start_at(line.issued.load());
}

void looked_up(bool routed) noexcept {
    look_ups.fetch_add(1, std::memory_order_relaxed);
    if (routed) routed_look_ups.fetch_add(1, std::memory_order_relaxed);
    for (const Link& link : links) tell_routes(link);
}

void drained(int ordinal) noexcept {
    Link* link = link_of(ordinal);
    if (link == nullptr || !link->wanted()) return;
    shared::Page* page = link->own_page();
    shared::Signals* memory = link->signals.load(std::memory_order_acquire);
    if (page == nullptr || memory == nullptr) return;
    const std::uint32_t index = link->slot.load(std::memory_order_relaxed);
    shared::Slot& slot = page->slots[index];
    const std::uint64_t launches = slot.counters.launches.load(std::memory_order_relaxed);
    if (link->drained_launches.exchange(launches, std::memory_order_relaxed) == launches) return;
    shared::settle(memory->clients[index]);
    slot.counters.drained_ns.store(shared::now_ns(), std::memory_order_relaxed);
    if (page->control.policy == shared::Policy::kQuota) slot.client.busy.store(0, std::memory_order_relaxed);
    slot.counters.drains.fetch_add(1, std::memory_order_relaxed);
    if (page->control.waiting.load(std::memory_order_relaxed) != 0 || slot.client.busy.load() != 0)
        link->notify();
}

void record(int ordinal, const Sample& sample) noexcept {
    Link* link = link_of(ordinal);
    shared::Page* page = link == nullptr ? nullptr : link->own_page();
    if (page == nullptr) return;
    shared::SampleRing& ring = page->slots[link->slot.load(std::memory_order_relaxed)].ring;
    const bool taken = link->recording.exchange(true, std::memory_order_acquire);
    const std::uint64_t written = ring.written.load(std::memory_order_relaxed);
    if (taken || written - ring.read.load(std::memory_order_acquire) >= shared::kRingSamples) {
        ring.dropped.fetch_add(1, std::memory_order_relaxed);
    } else {
        shared::RingSample& place = ring.samples[written % shared::kRingSamples];
        place.key = sample.key;
        place.cost = sample.cost;
        const std::size_t length = sample.name == nullptr ? 0 : strnlen(sample.name, place.name.size() - 1);
        if (length != 0) std::memcpy(place.name.data(), sample.name, length);
        place.name[length] = '\0';
        ring.written.store(written + 1, std::memory_order_release);
    }
    if (!taken) link->recording.store(false, std::memory_order_release);
}

Link& link_at(int ordinal) noexcept { return links[static_cast<std::size_t>(ordinal)]; }

void reset_after_fork() noexcept {
    newest = nullptr;
    forget_watchdog();
    for (Link& link : links) link.forget();
}

}  // namespace explsched::gate
