#include "tests/kernel/fakecuda/gpu/shared_file.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>
#include <stdexcept>
#include <system_error>

#include "tests/kernel/fakecuda/gpu/spin_pause.hpp"

namespace fakecuda::gpu {
namespace {

[[noreturn]] void fail(const std::string& what) {
    throw std::system_error(errno, std::generic_category(), what);
}

// A record lock on one byte per process slot says that the slot's owner lives. The kernel drops it when the
// process ends, in whatever way, even while it waits to be reaped; and a forked child does not inherit it.
struct flock slot_lock(short type, std::int32_t process) {
    struct flock lock {};
    lock.l_type = type;
    lock.l_whence = SEEK_SET;
    lock.l_start = process;
    lock.l_len = 1;
    return lock;
}

}  // namespace

std::int64_t monotonic_ns() {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

// A real driver submits without asking other processes. So this sleeps for the lock only if who holds it has
// lost its core: whoever sleeps is woken late, and takes the core from the one that wakes it.
SharedFile::Lock::Lock(State& state) : state_(state) {
    constexpr int kTries = 2'000;  // some 50 us
    int rc = pthread_mutex_trylock(&state_.mutex);
    for (int i = 0; i < kTries && rc == EBUSY; ++i) {
        fakecuda::spin_pause();
        rc = pthread_mutex_trylock(&state_.mutex);
    }
    if (rc == EBUSY) rc = pthread_mutex_lock(&state_.mutex);
    if (rc == EOWNERDEAD) {
        pthread_mutex_consistent(&state_.mutex);
    } else if (rc != 0) {
        throw std::system_error(rc, std::generic_category(), "lock of the virtual GPU");
    }
}

SharedFile::Lock::~Lock() { pthread_mutex_unlock(&state_.mutex); }

SharedFile::SharedFile(const std::string& path, const Settings& settings)
    : fd_(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)) {
    if (fd_ < 0) fail(path);
    // Until this process has a slot, so that the next to come does not take the GPU for unused.
    if (flock(fd_, LOCK_EX) != 0) fail(path);
    const bool unused = !is_in_use();
    if (unused && (ftruncate(fd_, 0) != 0 || ftruncate(fd_, sizeof(State)) != 0)) fail(path);
    struct stat status {};
    if (fstat(fd_, &status) != 0) fail(path);
    if (status.st_size != sizeof(State))
        throw std::runtime_error(path + ": in use by another build of the fake driver");
    void* mapped = mmap(nullptr, sizeof(State), PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
    if (mapped == MAP_FAILED) fail(path);
    state_ = static_cast<State*>(mapped);
    if (unused) set_up(settings);
    if (state_->magic != kMagic)
        throw std::runtime_error(path + ": in use by another build of the fake driver");
    {
        const Lock lock(*state_);
        take_slot();
    }
    flock(fd_, LOCK_UN);
}

SharedFile::~SharedFile() {
    munmap(state_, sizeof(State));
    close(fd_);
}

void SharedFile::set_up(const Settings& settings) {
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&state_->mutex, &attributes);
    pthread_mutexattr_destroy(&attributes);
    state_->settings = settings;
    state_->epoch_ns = monotonic_ns();
    state_->now_ns = 0;
    for (Stream& stream : state_->streams) stream.process = kNone;
    for (Event& event : state_->events) event.process = kNone;
    state_->magic = kMagic;
}

void SharedFile::take_slot() {
    for (std::int32_t i = 0; i < static_cast<std::int32_t>(kMaxProcesses); ++i) {
        if (state_->processes[i].pid != 0) continue;
        struct flock lock = slot_lock(F_WRLCK, i);
        if (fcntl(fd_, F_SETLK, &lock) != 0) continue;
        state_->processes[i].memory_bytes = 0;
        state_->processes[i].pid = getpid();
        process_ = i;
        return;
    }
    throw std::runtime_error("the virtual GPU has no room for another process");
}

bool SharedFile::is_in_use() const {
    struct flock any = slot_lock(F_WRLCK, 0);
    any.l_len = kMaxProcesses;
    return fcntl(fd_, F_GETLK, &any) == 0 && any.l_type != F_UNLCK;
}

bool SharedFile::is_alive(std::int32_t process) const {
    struct flock lock = slot_lock(F_WRLCK, process);
    return fcntl(fd_, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

std::vector<std::int32_t> SharedFile::dead_processes() const {
    std::vector<std::int32_t> dead;
    for (std::int32_t i = 0; i < static_cast<std::int32_t>(kMaxProcesses); ++i) {
        if (i != process_ && state_->processes[i].pid != 0 && !is_alive(i)) dead.push_back(i);
    }
    return dead;
}

}  // namespace fakecuda::gpu
