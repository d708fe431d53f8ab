#include "kernel_intercept/gate/gate.hpp"

#include <algorithm>
#include <cstring>

#include "kernel_intercept/gate/admission.hpp"
#include "kernel_intercept/gate/launch.hpp"
#include "kernel_intercept/gate/link.hpp"
#include "kernel_intercept/shared/clock.hpp"
#include "kernel_intercept/shared/ticks.hpp"

namespace explsched::gate {

namespace {

constexpr int kAttachPatienceMs = 100;

// Per process: how often each key was asked for. Keys that share a counter are sampled less often.
constexpr std::uint32_t kCounters = 4096;
constexpr std::uint32_t kWarmUpLaunches = 1;  // the first launch may load its module
constexpr std::uint32_t kFirstSamples = 8;
constexpr std::uint32_t kSampleEvery = 64;

constexpr std::uint64_t kPromptTicks = kPromptNs;

std::array<Link, kMaxGpus> links;
std::array<std::atomic<std::uint32_t>, kCounters> asked;
std::atomic<Link*> newest{nullptr};  // whose profile table is used; all of a manager's clients see the same

Link* link_of(int ordinal) {
    return ordinal >= 0 && ordinal < kMaxGpus ? &links[static_cast<std::size_t>(ordinal)] : nullptr;
}

// The page, while its manager is alive and this process is its client.
shared::Page* live_page(Link& link, std::uint64_t now_ns) {
    shared::Page* page = link.own_page();
    if (page != nullptr && manager_alive(page->control, now_ns)) return page;
    if (page != nullptr) {
        shared::Slot& slot = page->slots[link.slot.load(std::memory_order_relaxed)];
        slot.counters.unmanaged.fetch_add(1, std::memory_order_relaxed);
    }
    link.recover(now_ns);
    return nullptr;
}

// A launch asks to go. Returns the time.
std::uint64_t begin(Link& link, const KernelCost& cost) {
    const bool of_interest = cost.gpu_ns > shared::kShortNs;
    link.underway.since_ticks.store(of_interest ? shared::ticks() : 0, std::memory_order_relaxed);
    const std::uint64_t now_ns = shared::now_ns();
    if (of_interest) {
        link.underway.since_ns.store(now_ns, std::memory_order_relaxed);
        link.underway.gpu_ns.store(cost.gpu_ns, std::memory_order_relaxed);
    }
    return now_ns;
}

}  // namespace

void attach(int ordinal, const GpuIdentity& gpu) noexcept {
    Link* link = link_of(ordinal);
    if (link == nullptr || link->wanted()) return;
    link->attach(gpu, kAttachPatienceMs);
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

Admission admit(int ordinal, const KernelCost& cost) noexcept {
    Link* link = link_of(ordinal);
    if (link == nullptr || !link->wanted()) return Admission::kPassThrough;
    const std::uint64_t now_ns = begin(*link, cost);
    shared::Page* page = live_page(*link, now_ns);
    return page == nullptr ? Admission::kPassThrough : admit_managed(*link, *page, cost, now_ns);
}

void charge(int ordinal, const KernelCost& cost) noexcept {
    Link* link = link_of(ordinal);
    if (link == nullptr || !link->wanted()) return;
    const std::uint64_t now_ns = begin(*link, cost);
    shared::Page* page = live_page(*link, now_ns);
    if (page != nullptr) charge_managed(*link, *page, cost, now_ns);
}

void before_driver(int ordinal) noexcept {
    Link* link = link_of(ordinal);
    if (link == nullptr || link->underway.since_ticks.load(std::memory_order_relaxed) == 0) return;
    shared::Page* page = link->own_page();
    if (page == nullptr) return;
    const std::uint32_t index = link->slot.load(std::memory_order_relaxed);
    shared::Timeline& line = page->slots[index].timeline;
    Link::Underway& underway = link->underway;
    if (line.starting_ns.load(std::memory_order_relaxed) == 0) {
        underway.since_ticks.store(0, std::memory_order_relaxed);
        return;
    }
    const std::uint64_t ticks = shared::ticks();
    if (ticks - underway.since_ticks.load(std::memory_order_relaxed) < kPromptTicks) {
        line.starting_ns.store(0, std::memory_order_relaxed);
    } else {
        const std::uint64_t now_ns = shared::now_ns();
        reached_driver(*page, index, now_ns);
        underway.since_ns.store(now_ns, std::memory_order_relaxed);
    }
    underway.since_ticks.store(ticks, std::memory_order_relaxed);
}

void after_driver(int ordinal) noexcept {
    Link* link = link_of(ordinal);
    if (link == nullptr) return;
    const std::uint64_t since_ticks = link->underway.since_ticks.load(std::memory_order_relaxed);
    if (since_ticks == 0 || shared::ticks() - since_ticks < kPromptTicks) return;
    shared::Page* page = link->own_page();
    const std::uint64_t call_ns = shared::now_ns() - link->underway.since_ns.load(std::memory_order_relaxed);
    if (page == nullptr || call_ns < kPromptNs) return;
    shared::returned(page->slots[link->slot.load(std::memory_order_relaxed)].timeline, call_ns,
                     link->underway.gpu_ns.load(std::memory_order_relaxed));
}

void drained(int ordinal) noexcept {
    Link* link = link_of(ordinal);
    if (link == nullptr || !link->wanted()) return;
    shared::Page* page = link->own_page();
    if (page == nullptr) return;
    shared::Slot& slot = page->slots[link->slot.load(std::memory_order_relaxed)];
    if (shared::drained(slot.timeline)) return;
    shared::settle(slot.timeline, shared::now_ns());
    slot.counters.drains.fetch_add(1, std::memory_order_relaxed);
    if (page->control.waiting.load(std::memory_order_relaxed) != 0) link->ring();
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

void reset_after_fork() noexcept {
    newest = nullptr;
    for (Link& link : links) link.forget();
}

}  // namespace explsched::gate
