// A trace leaves no trace in the program: neither in errno nor among its files, whether it can be written or
// not.

#include <cerrno>
#include <filesystem>

#include "tests/kernel/interposer/session.hpp"

namespace {

int open_files() {
    const std::filesystem::directory_iterator files("/proc/self/fd");
    return static_cast<int>(std::distance(begin(files), end(files)));
}

}  // namespace

int main() {
    explsched::test::open_context(0);
    const CUfunction function = explsched::test::function_of(explsched::test::load_module(), "_Z4halfv");
    explsched::test::launch(function, 1, nullptr);
    const int files = open_files();
    for (int i = 0; i < 100; ++i) {
        errno = 77;
        explsched::test::launch(function, 1, nullptr);
        CHECK_EQUAL(errno, 77);
    }
    CHECK_EQUAL(open_files(), files);
}
