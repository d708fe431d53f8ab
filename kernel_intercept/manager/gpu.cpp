#include "kernel_intercept/manager/gpu.hpp"

#include <algorithm>

namespace explsched::manager {

Gpu::Gpu(const Settings& settings, const shared::Hello& first)
    : settings_(settings),
      identity_(first),
      page_("explsched-gpu", Access::kBothWrite),
      signals_("explsched-signals", Access::kBothWrite) {
    shared::Control& control = page_->control;
    control.policy = settings.policy;
    control.beat_interval_ns = settings.beat_ns;
    control.kept = shared::kSlots;
    page_->header = {shared::kPageMagic, shared::kLayoutVersion, sizeof(shared::Page), shared::kSlots};
    signals_->header = {shared::kSignalsMagic, shared::kLayoutVersion, sizeof(shared::Signals),
                        shared::kSlots};
}

std::optional<std::uint32_t> Gpu::join(const Tenant& tenant, std::uint64_t now_ns) {
    // In a circle: what the GPU may still write for a client that died is not to meet the next one.
    std::uint32_t slot = last_slot_;
    do {
        slot = (slot + 1) % shared::kSlots;
        if (slot == last_slot_ && clients_[slot].tenant) return std::nullopt;
    } while (clients_[slot].tenant);
    last_slot_ = slot;
    clients_[slot].tenant = tenant;
    if (empty()) {
        last_beat_ns_ = 0;
        last_refill_ns_ = now_ns;
    }
    signals_->clients[slot].gate.fetch_or(shared::kOpen);
    signals_->clients[slot].probe = 0;
    for (shared::Line& line : signals_->clients[slot].lines) line.done = line.issued = line.told = 0;
    beside_.forget(slot);
    page_->slots[slot].client.tenancy = ++tenancies_;
    // A first credit, so that a client can start before the first refill.
    page_->slots[slot].client.credit_ns =
        static_cast<std::int64_t>(settings_.beat_ns * tenant.request_permille / 1000);
    const std::uint64_t bit = std::uint64_t{1} << slot;
    if (tenant.priority == shared::Class::kHigh) page_->control.high.fetch_or(bit);
    page_->control.occupied.fetch_or(bit);
    beat(now_ns);
    return slot;
}

void Gpu::leave(std::uint32_t slot) {
    const std::uint64_t bit = std::uint64_t{1} << slot;
    shared::Control& control = page_->control;
    for (auto* clients : {&control.occupied, &control.high, &control.waiting, &control.beside})
        clients->fetch_and(~bit);
    signals_->clients[slot].gate.fetch_or(shared::kOpen);  // its work may still wait on the GPU
    new (&page_->slots[slot]) shared::Slot{};
    clients_[slot] = {};
}

void Gpu::beat(std::uint64_t now_ns) {
    shared::Control& control = page_->control;
    if (last_beat_ns_ != 0) {
        // The longest of late: at once when longer, a sixteenth nearer when shorter.
        const std::uint64_t longest = control.beat_interval_ns.load(std::memory_order_relaxed);
        const std::uint64_t passed = std::max(now_ns - last_beat_ns_, settings_.beat_ns);
        if (passed > kStoodStillNs) stood_still_until_ns_ = now_ns;
        control.beat_interval_ns.store(passed >= longest ? passed : longest - (longest - passed) / 16,
                                       std::memory_order_relaxed);
    }
    last_beat_ns_ = now_ns;
    // One may have been shut while its client went, whose work may still wait on the GPU.
    each_bit(~control.occupied.load(),
             [&](std::uint32_t slot) { signals_->clients[slot].gate.fetch_or(shared::kOpen); });
    control.heartbeat_ns.store(now_ns, std::memory_order_relaxed);
    if (settings_.policy == shared::Policy::kQuota) refill(now_ns);
}

std::uint64_t Gpu::serve(std::uint64_t now_ns) {
    return settings_.policy == shared::Policy::kGroup ? serve_group(now_ns) : serve_quota(now_ns);
}

// Timings are read some time after their launch, so a co-run lasts a while longer than it is seen.
CoRun Gpu::co_run() {
    constexpr std::uint64_t kReadLaterNs = 100'000'000;
    int active = 0;
    each_bit(page_->control.occupied.load(), [&](std::uint32_t slot) {
        const shared::Slot& state = page_->slots[slot];
        const std::uint64_t launches = state.counters.launches.load(std::memory_order_relaxed);
        const bool busy = !progress(slot).idle();
        if (launches != clients_[slot].launches || busy) ++active;
        clients_[slot].launches = launches;
    });
    if (active > 1) shared_until_ns_ = last_beat_ns_ + kReadLaterNs;
    return last_beat_ns_ < shared_until_ns_ ? CoRun::kShared : CoRun::kAlone;
}

void Gpu::take_samples(const std::function<void(const shared::RingSample&, CoRun)>& take) {
    const CoRun now = co_run();
    each_bit(page_->control.occupied.load(), [&](std::uint32_t slot) {
        shared::SampleRing& ring = page_->slots[slot].ring;
        const std::uint64_t written = ring.written.load(std::memory_order_acquire);
        std::uint64_t read = ring.read.load(std::memory_order_relaxed);
        // A client that writes nonsense here costs one pass over the ring, no more.
        if (written - read > shared::kRingSamples) read = written - shared::kRingSamples;
        for (; read != written; ++read) {
            shared::RingSample sample = ring.samples[read % shared::kRingSamples];
            sample.name.back() = '\0';
            take(sample, now);
        }
        ring.read.store(read, std::memory_order_release);
    });
}

}  // namespace explsched::manager
