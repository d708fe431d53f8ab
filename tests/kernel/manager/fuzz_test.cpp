// Random mutations of profile files and of messages, from a fixed seed. Arguments: the manager's program,
// iterations.
//
// Parsing must neither crash nor accept what it cannot write again; the manager must answer after any
// message. Built with -DEXPLSCHED_SANITIZE=address,undefined this finds what does not show otherwise.

#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>

#include "kernel_intercept/manager/profile.hpp"
#include "kernel_intercept/shared/protocol.hpp"
#include "tests/kernel/gate/check.hpp"
#include "tests/kernel/manager/daemon.hpp"

using namespace explsched;
using daemon_under_test::connect_to;
using daemon_under_test::Daemon;

namespace {

std::mt19937 generator(20240607);

std::size_t below(std::size_t bound) { return bound == 0 ? 0 : generator() % bound; }

void mutate(std::string& text) {
    static const char* const kPieces[] = {"\t",     "\n", ",",    "0", "18446744073709551616", "-1", "ncu",
                                          "timing", "\0", "\xff", " "};
    for (std::size_t changes = 1 + below(4); changes > 0; --changes) {
        const std::size_t at = below(text.size() + 1);
        switch (below(5)) {
            case 0:
                text.insert(at, kPieces[below(sizeof(kPieces) / sizeof(kPieces[0]))]);
                break;
            case 1:
                text.erase(at, below(16));
                break;
            case 2:
                if (at < text.size()) text[at] = static_cast<char>(generator());
                break;
            case 3:
                text.insert(at, text.substr(below(text.size() + 1), below(64)));
                break;
            default:
                text.resize(at);
                break;
        }
    }
}

std::string seed_file() {
    return std::string(manager::kTitle) + "\n" + std::string(manager::kColumns) + "\n" +
           "00000000000000ff\t1,2,3\t4,5,6\t7\t90\t8\t9000\t100\t200\tncu\t_Z3addPf\n"
           "0123456789abcdef\t1,1,1\t32,1,"
           "1\t0\t80\t18446744073709551615\t18446744073709551615\t1000\t0\ttiming\t\n";
}

void profile_files(int iterations) {
    for (int i = 0; i < iterations; ++i) {
        std::string text = seed_file();
        mutate(text);
        manager::ProfileText parsed;
        try {
            parsed = manager::parse_profiles(text);
        } catch (const std::invalid_argument& error) {
            CHECK(std::strlen(error.what()) > 0);
            continue;
        }
        // What was accepted takes a sample, can be written, and reads the same again.
        for (manager::Profile& profile : parsed.profiles)
            profile =
                manager::with_sample(std::move(profile), {generator(), 1000, 0}, manager::CoRun::kAlone);
        const std::string written = manager::render_profiles(parsed.profiles);
        const manager::ProfileText again = manager::parse_profiles(written);
        CHECK(again.faults.empty() && again.profiles.size() == parsed.profiles.size());
        CHECK(manager::render_profiles(again.profiles) == written);
    }
}

std::string seed_message() {
    shared::Hello hello{};
    hello.preamble = shared::preamble(shared::MessageKind::kHello);
    hello.request_permille = hello.limit_permille = 500;
    hello.gpu_uuid[0] = static_cast<unsigned char>(below(3));
    std::string message(sizeof(hello), '\0');
    std::memcpy(message.data(), &hello, sizeof(hello));
    const shared::Preamble notice =
        shared::preamble(below(2) == 0 ? shared::MessageKind::kNotify : shared::MessageKind::kStatus);
    if (below(3) == 0) message.assign(reinterpret_cast<const char*>(&notice), sizeof(notice));
    return message;
}

void messages(const Daemon& daemon, int iterations) {
    for (int i = 0; i < iterations; ++i) {
        const int fd = connect_to(daemon.socket());
        REQUIRE(fd >= 0);
        for (std::size_t count = below(4); count > 0; --count) {
            std::string message = seed_message();
            if (below(3) != 0) mutate(message);
            send(fd, message.data(), message.size(), MSG_NOSIGNAL);
        }
        close(fd);
    }
    CHECK(!daemon.status().empty());
}

}  // namespace

int main(int, char** argv) {
    const int iterations = std::atoi(argv[2]);
    profile_files(iterations);
    Daemon daemon(argv[1]);
    messages(daemon, iterations / 10);
    for (int i = 0; i < 5000 && daemon.status().find("\"pid\": ", 30) != std::string::npos; ++i) usleep(1000);
    CHECK(daemon_under_test::number_in(daemon.status(), "open") == 1);
    CHECK(daemon.stop() == 0);
    return check::result();
}
