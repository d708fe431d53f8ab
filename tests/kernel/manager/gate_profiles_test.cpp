// What a client tells of its kernels, and what it is told of them. Argument: the manager's program.

#include <sys/socket.h>

#include "kernel_intercept/manager/profile.hpp"
#include "kernel_intercept/manager/profile_store.hpp"
#include "kernel_intercept/shared/protocol.hpp"
#include "tests/kernel/manager/gate_client.hpp"

using namespace gate_client;
using daemon_under_test::number_in;

namespace {

std::string manager_program;

// On a busy machine the manager's welcome may come late: only launches look for it then.
template <typename Test>
void in_attached_client(const Daemon& daemon, const Test& test) {
    in_client(daemon, "high", [&] {
        REQUIRE(granted_soon(kSmall));
        test();
    });
}

void samples_become_costs_and_are_saved() {
    Daemon daemon(manager_program);
    in_attached_client(daemon, [&] {
        CHECK(!known_cost(kHash));
        for (int i = 0; i < 4; ++i) gate::record(0, {kKey, {5000, 300, 400}, i == 0 ? "_Z3addPf" : nullptr});
        CHECK(soon([&] { return known_cost(kHash).has_value(); }));
        const auto cost = known_cost(kHash);
        CHECK(cost && cost->gpu_ns == 5000 && cost->compute_permille == 300 &&
              cost->bandwidth_permille == 400);
        for (int i = 0; i < 100'000; ++i) gate::record(0, {kKey, {5000, 300, 400}, nullptr});
        CHECK(number_in(daemon.status(), "samples_dropped") > 0);
    });
    CHECK(daemon.stop() == 0);
    const auto saved = manager::load_profiles(daemon.profiles());
    REQUIRE(saved.profiles.size() == 1);
    CHECK(saved.profiles[0].name == "_Z3addPf" && saved.profiles[0].cost.gpu_ns == 5000);
    daemon.start();
    in_attached_client(daemon, [&] { CHECK(known_cost(kHash).has_value()); });
}

void long_names_are_kept() {
    Daemon daemon(manager_program);
    const std::string name = "_Z" + std::string(1500, 'x'), too_long = "_Z" + std::string(3000, 'y');
    in_attached_client(daemon, [&] {
        gate::record(0, {kKey, {5000, 300, 400}, name.c_str()});
        KernelKey other = kKey;
        other.name_hash = 43;
        gate::record(0, {other, {5000, 300, 400}, too_long.c_str()});
        CHECK(soon([&] { return known_cost(hash_of(other)).has_value(); }));
    });
    CHECK(daemon.stop() == 0);
    const auto saved = manager::load_profiles(daemon.profiles());
    REQUIRE(saved.profiles.size() == 2);
    for (const auto& profile : saved.profiles) {
        CHECK(profile.name == (profile.key.name_hash == 42 ? name : too_long.substr(0, 2047)));
    }
}

void a_forgotten_kernel_is_unknown_to_clients_and_in_the_file() {
    Daemon daemon(manager_program);
    in_attached_client(daemon, [&] {
        gate::record(0, {kKey, {5000, 300, 400}, "name"});
        CHECK(soon([&] { return known_cost(kHash).has_value(); }));
        const shared::Forget forget{shared::preamble(shared::MessageKind::kForget), kKey};
        shared::Forget answer{};
        const int fd = daemon_under_test::connect_to(daemon.socket());
        CHECK(send(fd, &forget, sizeof(forget), MSG_NOSIGNAL) == sizeof(forget));
        CHECK(recv(fd, &answer, sizeof(answer), 0) == sizeof(answer));
        close(fd);
        CHECK(!known_cost(kHash));
    });
    CHECK(daemon.stop() == 0);
    CHECK(manager::load_profiles(daemon.profiles()).profiles.empty());
}

void sampling_is_frequent_at_first() {
    const Daemon daemon(manager_program);
    in_attached_client(daemon, [&] {
        int due = 0;
        for (int i = 0; i < 9; ++i) due += gate::sampling_due(kHash) ? 1 : 0;
        CHECK(due == 8);  // all but the first
        due = 0;
        for (int i = 0; i < 1024; ++i) due += gate::sampling_due(kHash) ? 1 : 0;
        CHECK(due == 16);
        due = 0;
        for (int i = 0; i < 10'240; ++i) due += gate::sampling_due(kHash) ? 1 : 0;
        CHECK(due == 10);  // once it is well known
    });
}

}  // namespace

int main(int, char** argv) {
    manager_program = argv[1];
    samples_become_costs_and_are_saved();
    long_names_are_kept();
    a_forgotten_kernel_is_unknown_to_clients_and_in_the_file();
    sampling_is_frequent_at_first();
    return check::result();
}
