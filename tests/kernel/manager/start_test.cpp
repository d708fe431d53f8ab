// What a manager sets up: nobody but its user may have a say in it.

#include "kernel_intercept/manager/start.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

#include "kernel_intercept/manager/memory.hpp"
#include "tests/kernel/gate/check.hpp"

using namespace explsched::manager;
namespace fs = std::filesystem;

namespace {

std::string scratch;

mode_t mode_of(const std::string& path) {
    struct stat info {};
    REQUIRE(lstat(path.c_str(), &info) == 0);
    return info.st_mode & 0777;
}

template <typename Action>
bool refuses(const Action& action) {
    try {
        action();
        return false;
    } catch (const std::runtime_error&) {
        return true;
    }
}

bool refuses_directory(const std::string& path) {
    return refuses([&] { make_directory(path); });
}

void the_directory_is_its_users_alone() {
    const std::string path = scratch + "/made";
    const mode_t before = umask(0);
    make_directory(path);
    umask(before);
    CHECK(mode_of(path) == 0700);
    make_directory(path);  // it may be there
    for (const mode_t mode : {0701, 0710, 0750, 0777}) {
        CHECK(chmod(path.c_str(), mode) == 0 && refuses_directory(path));
    }
    CHECK(chmod(path.c_str(), 0700) == 0);
    fs::create_directory_symlink(path, scratch + "/link");
    CHECK(refuses_directory(scratch + "/link"));
    std::ofstream(scratch + "/file").put('x');
    CHECK(chmod((scratch + "/file").c_str(), 0600) == 0 && refuses_directory(scratch + "/file"));
    CHECK(refuses_directory(scratch + "/missing/made"));
    if (geteuid() != 0) return;  // only root can give a directory away
    CHECK(chown(path.c_str(), 65534, 65534) == 0 && refuses_directory(path));
}

void one_instance_has_the_lock_and_a_link_is_none() {
    const std::string path = scratch + "/locked";
    {
        const auto lock = locked(path, F_OFD_SETLK);
        CHECK(lock.get() >= 0 && refuses([&] { locked(path, F_OFD_SETLK); }));
        CHECK(mode_of(path) == 0600);
    }
    CHECK(locked(path, F_OFD_SETLK).get() >= 0);  // the other has ended
    fs::remove(path);
    fs::create_symlink(scratch + "/elsewhere", path);
    CHECK(refuses([&] { locked(path, F_OFD_SETLK); }) && !fs::exists(scratch + "/elsewhere"));
}

void the_socket_is_its_users_alone_and_replaces_a_dead_ones() {
    const std::string path = scratch + "/socket";
    const mode_t before = umask(0);
    for (int i = 0; i < 2; ++i) {
        const auto listener = listen_at(path);
        CHECK(listener.get() >= 0 && mode_of(path) == 0600);
    }
    umask(before);
}

// Where a cleaner has removed the lock of a living manager.
void the_socket_of_a_living_one_is_not_replaced() {
    const std::string path = scratch + "/served";
    {
        const auto listener = listen_at(path);
        CHECK(refuses([&] { listen_at(path); }));
        CHECK(accept(listener.get(), nullptr, nullptr) >= 0);  // asked, and still reached by its name
        CHECK(listen(listener.get(), 0) == 0);
        CHECK(refuses([&] { listen_at(path); }) && refuses([&] { listen_at(path); }));  // with its queue full
    }
    CHECK(listen_at(path).get() >= 0);
}

// A client that could cut a page would end all others with SIGBUS; the table is not theirs to write.
void shared_memory_cannot_be_resized_and_the_table_not_be_written() {
    for (const Access access : {Access::kBothWrite, Access::kOthersRead}) {
        const Shared<std::array<char, 8192>> memory("test", access);
        CHECK(ftruncate(memory.descriptor(), 4096) != 0 && ftruncate(memory.descriptor(), 16384) != 0);
        CHECK(fcntl(memory.descriptor(), F_ADD_SEALS, F_SEAL_WRITE) != 0);  // sealed for good
        void* at = mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, memory.descriptor(), 0);
        CHECK((at != MAP_FAILED) == (access == Access::kBothWrite));
        CHECK(write(memory.descriptor(), "x", 1) == (access == Access::kBothWrite ? 1 : -1));
        (*memory)[0] = 'y';  // the manager itself may
        if (at != MAP_FAILED) munmap(at, 8192);
    }
}

}  // namespace

int main() {
    std::string pattern = (fs::temp_directory_path() / "start-XXXXXX").string();
    REQUIRE(mkdtemp(pattern.data()) != nullptr);
    scratch = pattern;
    the_directory_is_its_users_alone();
    one_instance_has_the_lock_and_a_link_is_none();
    the_socket_is_its_users_alone_and_replaces_a_dead_ones();
    the_socket_of_a_living_one_is_not_replaced();
    shared_memory_cannot_be_resized_and_the_table_not_be_written();
    fs::remove_all(scratch);
    return check::result();
}
