#include "tests/kernel/fakecuda/driver.hpp"

#include <pthread.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>

#include "tests/kernel/fakecuda/fault.hpp"

namespace fakecuda {

std::atomic<bool> usable{false};

namespace {

enum class Phase { kFresh, kReady, kForked };

// Never destroyed: programs call the driver from their own exit handlers.
struct Driver {
    Phase phase{Phase::kFresh};
    std::mutex mutex;
    std::deque<Device> devices;
    KernelTable kernels;
};

Driver& driver() {
    static auto* const the_driver = new Driver;
    return *the_driver;
}

void forget_in_child() {
    if (!usable.exchange(false)) return;
    driver().phase = Phase::kForked;
}

double number_from_environment(const char* name, double otherwise) {
    const char* text = std::getenv(name);
    return text == nullptr ? otherwise : std::stod(text);
}

// How a virtual GPU is set up: FAKECUDA_SHARING=sliced (no MPS: processes take turns of FAKECUDA_SLICE_US,
// 2000) instead of concurrently, FAKECUDA_SMS (132), FAKECUDA_TIME_SCALE (1: real seconds per second of the
// GPU), FAKECUDA_LOG (any value).
gpu::Settings settings_from_environment() {
    gpu::Settings settings;
    const char* sharing = std::getenv("FAKECUDA_SHARING");
    if (sharing != nullptr && std::strcmp(sharing, "sliced") == 0)
        settings.sharing = gpu::Sharing::kTimeSliced;
    settings.multiprocessors = static_cast<std::int32_t>(number_from_environment("FAKECUDA_SMS", 132));
    settings.slice_ns = number_from_environment("FAKECUDA_SLICE_US", 2000) * 1e3;
    settings.time_scale = number_from_environment("FAKECUDA_TIME_SCALE", 1);
    settings.logs = std::getenv("FAKECUDA_LOG") != nullptr ? 1 : 0;
    return settings;
}

CUuuid uuid_of(CUdevice ordinal) {
    CUuuid uuid{{'f', 'a', 'k', 'e', '-', 'g', 'p', 'u'}};
    uuid.bytes[sizeof uuid.bytes - 1] = static_cast<char>(ordinal);
    return uuid;
}

void add_devices() {
    const char* path = std::getenv("FAKECUDA_GPU");
    const int count = static_cast<int>(number_from_environment("FAKECUDA_DEVICES", 1));
    for (CUdevice i = 0; i < count; ++i) {
        Device added{i, uuid_of(i), nullptr};
        if (path != nullptr) {
            const std::string own = i == 0 ? path : path + ("." + std::to_string(i));
            added.gpu = std::make_unique<gpu::VirtualGpu>(own, settings_from_environment());
        }
        driver().devices.push_back(std::move(added));
    }
}

}  // namespace

CUresult initialise() {
    const std::lock_guard lock(driver().mutex);
    if (driver().phase == Phase::kReady) return CUDA_SUCCESS;
    if (driver().phase == Phase::kForked) return CUDA_ERROR_NOT_INITIALIZED;
    try {
        read_fault_from_environment();
        driver().kernels = KernelTable::from_environment();
        add_devices();
    } catch (const std::exception& error) {
        std::fprintf(stderr, "fake CUDA driver: %s\n", error.what());
        return CUDA_ERROR_INVALID_VALUE;
    }
    pthread_atfork(nullptr, nullptr, forget_in_child);
    driver().phase = Phase::kReady;
    usable.store(true, std::memory_order_release);
    return CUDA_SUCCESS;
}

std::deque<Device>& devices() { return driver().devices; }

Device* device(CUdevice ordinal) {
    const bool exists = ordinal >= 0 && ordinal < static_cast<int>(driver().devices.size());
    return exists ? &driver().devices[ordinal] : nullptr;
}

KernelTable& kernels() { return driver().kernels; }

}  // namespace fakecuda
