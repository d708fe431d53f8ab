// Profile files: what is read, what is left out, how they are merged and written.

#include "kernel_intercept/manager/profile.hpp"

#include <pthread.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include "kernel_intercept/manager/profile_keeper.hpp"
#include "kernel_intercept/manager/profile_store.hpp"
#include "tests/kernel/gate/check.hpp"

using namespace explsched;
using namespace explsched::manager;

namespace {

const std::string kHead = std::string(kTitle) + "\n" + std::string(kColumns) + "\n";
const std::string kGood = "00000000000000ff\t1,2,3\t4,5,6\t7\t90\t8\t9000\t100\t200\tncu\t_Z3addPf";

Profile profile(std::uint64_t name, std::uint64_t samples, std::uint64_t gpu_ns, std::uint32_t compute,
                Source source) {
    return {{name, {1, 1, 1}, {32, 1, 1}, 0, 90}, samples, {gpu_ns, compute, 50}, source, "k"};
}

bool refuses(const std::string& text) {
    try {
        parse_profiles(text);
        return false;
    } catch (const std::invalid_argument&) {
        return true;
    }
}

void a_line_is_read() {
    const ProfileText text = parse_profiles(kHead + kGood + "\n");
    REQUIRE(text.profiles.size() == 1 && text.faults.empty());
    const Profile& found = text.profiles[0];
    CHECK(found.key.name_hash == 0xff && found.key.grid.z == 3 && found.key.block.x == 4);
    CHECK(found.key.dynamic_shared_bytes == 7 && found.key.compute_capability == 90);
    CHECK(found.samples == 8 && found.cost.gpu_ns == 9000 && found.cost.compute_permille == 100);
    CHECK(found.cost.bandwidth_permille == 200 && found.source == Source::kNcu && found.name == "_Z3addPf");
    CHECK(render_profiles(text.profiles) == kHead + kGood + "\n");
}

void bad_lines_are_left_out_and_told_with_their_number() {
    std::string text = kHead;
    const char* bad[] = {"",
                         "x",
                         "\t\t\t\t\t\t\t\t\t\t",
                         "00000000000000FF\t1,2,3\t4,5,6\t7\t90\t8\t9\t1\t2\tncu\tn",
                         "ff\t1,2,3\t4,5,6\t7\t90\t8\t9\t1\t2\tncu\tn",
                         "00000000000000ff\t1,2\t4,5,6\t7\t90\t8\t9\t1\t2\tncu\tn",
                         "00000000000000ff\t1,2,-3\t4,5,6\t7\t90\t8\t9\t1\t2\tncu\tn",
                         "00000000000000ff\t1,2,4294967296\t4,5,6\t7\t90\t8\t9\t1\t2\tncu\tn",
                         "00000000000000ff\t1,2,3\t4,5,6\t7\t90\t8\t9\t1001\t2\tncu\tn",
                         "00000000000000ff\t1,2,3\t4,5,6\t7\t90\t8\t9\t1\t2\tguess\tn",
                         "00000000000000ff\t1,2,3\t4,5,6\t7\t90\t8\t9 \t1\t2\tncu\tn",
                         "00000000000000ff\t1,2,3\t4,5,6\t7\t90\t99999999999999999999\t9\t1\t2\tncu\tn"};
    for (const char* line : bad) text += std::string(line) + "\n" + kGood + "\n";
    const ProfileText found = parse_profiles(text);
    const std::size_t count = sizeof(bad) / sizeof(bad[0]);
    CHECK(found.profiles.size() == count);
    REQUIRE(found.faults.size() == count);
    for (std::size_t i = 0; i < count; ++i) {
        CHECK(found.faults[i].line == 3 + 2 * i);
        CHECK(!found.faults[i].reason.empty());
    }
}

void other_files_are_refused() {
    CHECK(parse_profiles("").profiles.empty());
    CHECK(refuses("hello\n"));
    CHECK(refuses("# explsched kernel profiles 2\n"));
    CHECK(refuses(std::string(kTitle) + "\nname\n"));
}

void names_cannot_break_the_file() {
    Profile odd = profile(1, 1, 10, 10, Source::kTiming);
    odd.name = "a\tb\nc\x80";
    const ProfileText text = parse_profiles(render_profiles({odd}));
    REQUIRE(text.profiles.size() == 1 && text.faults.empty());
    CHECK(text.profiles[0].name == "a?b?c?");
}

void timings_are_averaged_and_follow_change() {
    Profile mean = profile(1, 0, 999, 0, Source::kTiming);
    for (const std::uint64_t ns : {100, 200, 300}) mean = with_sample(mean, {ns, 10, 20}, CoRun::kAlone);
    CHECK(mean.samples == 3 && mean.cost.gpu_ns == 200 && mean.cost.compute_permille == 10);
    for (int i = 0; i < 1000; ++i) mean = with_sample(mean, {10'000, 10, 20}, CoRun::kAlone);
    for (int i = 0; i < 300; ++i) mean = with_sample(mean, {20'000, 10, 20}, CoRun::kAlone);
    CHECK(mean.cost.gpu_ns > 19'900);
}

void long_timings_count_for_little() {
    Profile mean = profile(1, 32, 1000, 0, Source::kTiming);
    CHECK(with_sample(mean, {1'000'000, 0, 0}, CoRun::kAlone).cost.gpu_ns < 1010);
    CHECK(with_sample(mean, {2000, 0, 0}, CoRun::kShared).cost.gpu_ns == 1000);
    CHECK(with_sample(mean, {500, 0, 0}, CoRun::kShared).cost.gpu_ns < 1000);
    CHECK(with_sample(profile(1, 0, 0, 0, Source::kTiming), {2000, 0, 0}, CoRun::kShared).cost.gpu_ns ==
          2000);
}

void measured_shares_are_not_overwritten_by_estimates() {
    const Profile after = with_sample(profile(1, 5, 100, 700, Source::kNcu), {100, 10, 20}, CoRun::kAlone);
    CHECK(after.cost.compute_permille == 700 && after.source == Source::kNcu && after.samples == 6);
}

void a_file_may_hold_as_many_samples_as_can_be_written() {
    const std::string most = std::to_string(UINT64_MAX);
    const ProfileText text = parse_profiles(kHead + "00000000000000ff\t1,1,1\t32,1,1\t0\t90\t" + most +
                                            "\t3200\t1\t2\ttiming\tk\n");
    REQUIRE(text.profiles.size() == 1);
    const Profile after = with_sample(text.profiles[0], {32, 1, 2}, CoRun::kAlone);
    CHECK(after.samples == UINT64_MAX && after.cost.gpu_ns == 3101);
}

void merging_keeps_the_better_of_each() {
    const Profile timed = profile(1, 100, 500, 10, Source::kTiming),
                  imported = profile(1, 0, 400, 700, Source::kNcu);
    for (const Profile& both : {merged(timed, imported), merged(imported, timed)}) {
        CHECK(both.samples == 100 && both.cost.gpu_ns == 500);
        CHECK(both.cost.compute_permille == 700 && both.source == Source::kNcu);
    }
    // At equal trust what a tool has written counts.
    CHECK(
        merged(profile(1, 1, 1, 1, Source::kNcu), profile(1, 1, 2, 2, Source::kNcu)).cost.compute_permille ==
        2);
}

shared::RingSample sample(std::uint64_t name, std::uint64_t gpu_ns) {
    shared::RingSample made{{name, {1, 1, 1}, {32, 1, 1}, 0, 90}, {gpu_ns, 40, 50}, {}};
    made.name[0] = 'k';
    return made;
}

void files_are_written_with_what_others_added() {
    std::string pattern = (std::filesystem::temp_directory_path() / "profiles-XXXXXX").string();
    REQUIRE(mkdtemp(pattern.data()) != nullptr);
    const std::string path = pattern + "/new/kernels-v1.tsv";
    CHECK(load_profiles(path).profiles.empty());
    ProfileStore store;
    store.add(sample(1, 100), CoRun::kAlone);
    CHECK(save_profiles(path, store.profiles(), {}).size() == 1);
    CHECK(save_profiles(path, {profile(2, 0, 5, 600, Source::kNcu)}, {}).size() == 2);  // a tool's import
    store.add(sample(1, 300), CoRun::kAlone);
    store.adopt(save_profiles(path, store.profiles(), {}));
    CHECK(store.size() == 2);
    const ProfileText text = load_profiles(path);
    REQUIRE(text.profiles.size() == 2 && text.faults.empty());
    for (const Profile& known : store.profiles())
        CHECK(known.key.name_hash != 1 || (known.cost.gpu_ns == 200 && known.samples == 2));
    struct stat info {};
    CHECK(stat(path.c_str(), &info) == 0 && (info.st_mode & 0777) == 0600);
    CHECK(stat((pattern + "/new").c_str(), &info) == 0 && (info.st_mode & 0777) == 0700);
    std::ofstream(path) << "another program's file\n";
    bool refused = false;
    try {
        save_profiles(path, store.profiles(), {});
    } catch (const std::runtime_error&) {
        refused = true;
    }
    std::stringstream left;
    left << std::ifstream(path).rdbuf();
    CHECK(refused && left.str() == "another program's file\n");
    std::filesystem::remove_all(pattern);
}

// Else a save would take it for an empty one, and replace it.
void a_file_that_cannot_be_read_is_an_error() {
    bool refused = false;
    try {
        load_profiles("/proc/self/mem");  // EIO
    } catch (const std::system_error&) {
        refused = true;
    }
    CHECK(refused);
}

// Of a full disk, say: what was there stays.
void a_file_that_cannot_be_written_is_not_replaced() {
    std::string pattern = (std::filesystem::temp_directory_path() / "profiles-XXXXXX").string();
    REQUIRE(mkdtemp(pattern.data()) != nullptr);
    const std::string path = pattern + "/kernels-v1.tsv";
    save_profiles(path, {profile(1, 5, 100, 200, Source::kTiming)}, {});
    const pid_t writer = fork();
    if (writer == 0) {
        signal(SIGXFSZ, SIG_IGN);
        const rlimit little{16, 16};
        bool refused = false;
        try {
            if (setrlimit(RLIMIT_FSIZE, &little) != 0) std::_Exit(2);
            save_profiles(path, {profile(2, 5, 100, 200, Source::kTiming)}, {});
        } catch (const std::runtime_error&) {
            refused = true;
        }
        std::_Exit(refused ? 0 : 1);
    }
    int status = -1;
    CHECK(waitpid(writer, &status, 0) == writer && status == 0);
    CHECK(load_profiles(path).profiles.size() == 1);
    std::filesystem::remove_all(pattern);
}

// A user who runs as many threads as `ulimit -u` allows; here none has the memory that it asks for.
void profiles_are_saved_where_no_thread_can_be_started() {
    std::string pattern = (std::filesystem::temp_directory_path() / "profiles-XXXXXX").string();
    REQUIRE(mkdtemp(pattern.data()) != nullptr);
    const std::string path = pattern + "/kernels-v1.tsv";
    ProfileStore store;
    ProfileKeeper keeper(store, path, 1);
    store.add(sample(1, 100), CoRun::kAlone);
    pthread_attr_t usual, huge;
    REQUIRE(pthread_getattr_default_np(&usual) == 0 && pthread_attr_init(&huge) == 0);
    REQUIRE(pthread_attr_setstacksize(&huge, std::size_t{1} << 60) == 0);
    REQUIRE(pthread_setattr_default_np(&huge) == 0);
    try {
        for (int pass = 0; pass < 2; ++pass) keeper.save_if_due(UINT64_MAX);
    } catch (const std::exception&) {
        CHECK(!"the manager goes on");
    }
    CHECK(pthread_setattr_default_np(&usual) == 0);
    CHECK(keeper.totals().saves == 1 && load_profiles(path).profiles.size() == 1);
    std::filesystem::remove_all(pattern);
}

void what_is_forgotten_stays_so_until_it_runs_again() {
    std::string pattern = (std::filesystem::temp_directory_path() / "profiles-XXXXXX").string();
    REQUIRE(mkdtemp(pattern.data()) != nullptr);
    const std::string path = pattern + "/kernels-v1.tsv";
    ProfileStore store;
    for (const std::uint64_t name : {1, 2}) store.add(sample(name, 100), CoRun::kAlone);
    const auto file = save_profiles(path, store.profiles(), {});
    store.forget(file[0].key);
    store.adopt(file);  // of a save that was under way
    CHECK(store.size() == 1 && store.forgotten().size() == 1);
    const auto left_out = store.forgotten();
    store.adopt(save_profiles(path, store.profiles(), left_out));
    CHECK(load_profiles(path).profiles.size() == 1);
    store.left_out(left_out);
    CHECK(store.forgotten().empty());
    store.add(sample(file[0].key.name_hash, 300), CoRun::kAlone);
    CHECK(store.size() == 2);
    for (const Profile& known : store.profiles())
        CHECK(known.cost.gpu_ns == (hash_of(known.key) == hash_of(file[0].key) ? 300 : 100));
    std::filesystem::remove_all(pattern);
}

void the_table_has_all_and_never_overflows() {
    ProfileStore store;
    for (std::uint64_t name = 1; name <= shared::kTableEntries; ++name)
        store.add(sample(name, name), CoRun::kAlone);
    CHECK(store.size() == shared::kTableEntries / 4 * 3);
    CHECK(store.refused() == shared::kTableEntries / 4);
    store.add(sample(1, 0), CoRun::kAlone);  // says nothing
    store.add(sample(1, UINT64_MAX), CoRun::kAlone);
    CHECK(store.refused() == shared::kTableEntries / 4 + 2);
    store.adopt({profile(shared::kTableEntries + 1, 1, 1, 1, Source::kNcu)});
    CHECK(store.refused() == shared::kTableEntries / 4 + 3 && store.size() == shared::kTableEntries / 4 * 3);
    store.add(sample(1, 5), CoRun::kAlone);
    CHECK(store.samples() == store.size() + 1);
}

// Programs whose tensors have another shape each time fill a table in a day.
void a_full_file_leaves_room_for_new_kernels() {
    std::string pattern = (std::filesystem::temp_directory_path() / "profiles-XXXXXX").string();
    REQUIRE(mkdtemp(pattern.data()) != nullptr);
    const std::string path = pattern + "/kernels-v1.tsv";
    std::vector<Profile> many;
    for (std::uint64_t name = 1; name <= 2 * kMostKernels; ++name)
        many.push_back(profile(name, name, name, 1, Source::kTiming));
    many[0].source = Source::kNcu;
    save_profiles(path, many, {});
    ProfileStore store;
    const ProfileText file = load_profiles(path);
    CHECK(file.profiles.size() ==
          kMostKernels);  // those with the most timings, and what was measured otherwise
    CHECK(std::all_of(file.profiles.begin(), file.profiles.end(), [](const Profile& kept) {
        return kept.samples > kMostKernels || kept.source == Source::kNcu;
    }));
    store.adopt(file.profiles);
    const std::size_t known = store.size();
    CHECK(known == kMostKernels / 2 && store.profiles().size() == known);
    const auto knows = [&](std::uint64_t name) {
        const std::vector<Profile> all = store.profiles();
        return std::any_of(all.begin(), all.end(),
                           [&](const Profile& one) { return one.key.name_hash == name; });
    };
    CHECK(knows(1) && knows(2 * kMostKernels) && store.refused() == 0);
    store.add(sample(3 * kMostKernels, 100), CoRun::kAlone);
    CHECK(knows(3 * kMostKernels));
    std::filesystem::remove_all(pattern);
}

// Persistent kernels have one key for matrices of any size.
void a_key_of_two_lengths_costs_their_mean() {
    Profile both = profile(1, 0, 0, 0, Source::kTiming);
    for (int i = 0; i < 1000; ++i)
        both = with_sample(both, {i % 2 == 0 ? 10'000U : 200'000U, 0, 0}, CoRun::kAlone);
    CHECK(both.cost.gpu_ns > 60'000 && both.cost.gpu_ns < 150'000);
    Profile steady = profile(1, 0, 0, 0, Source::kTiming);  // one in fifty is held up by its host
    for (int i = 0; i < 1000; ++i)
        steady = with_sample(steady, {i % 50 == 9 ? 200'000U : 10'000U, 0, 0}, CoRun::kAlone);
    CHECK(steady.cost.gpu_ns < 11'000);
}

}  // namespace

int main() {
    a_line_is_read();
    bad_lines_are_left_out_and_told_with_their_number();
    other_files_are_refused();
    names_cannot_break_the_file();
    timings_are_averaged_and_follow_change();
    long_timings_count_for_little();
    measured_shares_are_not_overwritten_by_estimates();
    a_file_may_hold_as_many_samples_as_can_be_written();
    merging_keeps_the_better_of_each();
    files_are_written_with_what_others_added();
    profiles_are_saved_where_no_thread_can_be_started();
    what_is_forgotten_stays_so_until_it_runs_again();
    a_file_that_cannot_be_read_is_an_error();
    a_file_that_cannot_be_written_is_not_replaced();
    the_table_has_all_and_never_overflows();
    a_full_file_leaves_room_for_new_kernels();
    a_key_of_two_lengths_costs_their_mean();
    return check::result();
}
