// What a task finds in its environment. Argument: a library that can be preloaded.

#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "tests/slurm_plugin/spank/fake_spank.hpp"

using namespace fake_spank;

namespace {

std::string library;
std::filesystem::path scratch;

using Variables = std::map<std::string, std::string>;

// A step as slurmstepd starts it, with these options.
template <typename Test>
void in_step(const std::map<std::string, const char*>& options, const Test& test) {
    in_process(S_CTX_REMOTE, [&] {
        slurm_spank_init(nullptr, 0, nullptr);
        for (const auto& [name, text] : options) CHECK(give(name, text) == 0);
        test();
    });
}

void without_options_a_task_is_left_alone() {
    in_step({}, [] {
        CHECK(task_init({"library=" + library, "manager_socket=/s", "mps_pipe_directory=/"}) == 0);
        CHECK(slurm.environment.empty() && slurm.errors.empty());
    });
    in_step({{"expl-early-stop", nullptr}}, [] {  // not about sharing
        CHECK(task_init({"library=" + library, "manager_socket=/s"}) == 0);
        CHECK((slurm.environment == Variables{{"EXPLSCHED_EARLY_STOP", "1"}}));
    });
}

void each_way_to_ask_for_sharing_preloads_the_library() {
    const std::map<std::string, const char*> ways{
        {"expl-share", "high"}, {"expl-request", "0.5"}, {"expl-limit", "0.5"}};
    for (const auto& way : ways) {
        in_step({way}, [] {
            CHECK(task_init({"library=" + library, "manager_socket=/run/s"}) == 0);
            CHECK(slurm.environment["LD_PRELOAD"] == library && slurm.errors.empty());
            CHECK(slurm.environment["EXPLSCHED_KM_SOCKET"] == "/run/s");
        });
    }
    in_step({{"expl-share", "high"}}, [] {  // a site without the kernel level
        CHECK(task_init({"spool=/spool"}) == 0 && slurm.errors.empty());
        CHECK((slurm.environment == Variables{{"EXPLSCHED_SHARE", "high"}, {"EXPLSCHED_SPOOL", "/spool"}}));
    });
}

void a_variable_of_the_job_asks_too_and_is_written_as_the_programs_read_it() {
    in_step({}, [] {
        setenv("EXPLSCHED_SHARE", "high", 1);  // slurmstepd's own: not the job's
        slurm.environment = {{"EXPLSCHED_LIMIT", ".25"}, {"EXPLSCHED_REQUEST", "300"}};
        CHECK(task_init({"library=" + library}) == 0);
        CHECK(slurm.environment["EXPLSCHED_LIMIT"] == "0.25" && slurm.environment["LD_PRELOAD"] == library);
        CHECK(logged("EXPLSCHED_REQUEST=300 is ignored") && slurm.environment.count("EXPLSCHED_SHARE") == 0);
    });
    in_step({{"expl-limit", "0.5"}}, [] {
        slurm.environment = {{"EXPLSCHED_LIMIT", "0.25"}};
        CHECK(task_init() == 0 && slurm.environment["EXPLSCHED_LIMIT"] == "0.5");
    });
}

void what_the_user_preloads_stays() {
    in_step({{"expl-share", "high"}}, [] {
        slurm.environment["LD_PRELOAD"] = "/a.so:/b.so";
        CHECK(task_init({"library=" + library}) == 0);
        CHECK(slurm.environment["LD_PRELOAD"] == "/a.so:/b.so:" + library);
        CHECK(task_init({"library=" + library}) == 0);  // a step inside a job
        CHECK(slurm.environment["LD_PRELOAD"] == "/a.so:/b.so:" + library);
    });
    in_step({{"expl-share", "high"}}, [] {
        const std::string longest(5000, 'x');
        slurm.environment["LD_PRELOAD"] = longest;
        CHECK(task_init({"library=" + library}) == 0 && slurm.environment["LD_PRELOAD"] == longest);
    });
}

void the_kill_switch_leaves_a_task_alone() {
    for (const char* word : {"off", "OFF"}) {
        in_step({{"expl-share", "high"}}, [&] {
            slurm.environment["EXPLSCHED_INTERCEPT"] = word;
            CHECK(task_init({"library=" + library, "manager_socket=/s"}) == 0 && slurm.errors.empty());
            CHECK(slurm.environment.count("LD_PRELOAD") == 0 &&
                  slurm.environment.count("EXPLSCHED_KM_SOCKET") == 0);
        });
    }
}

void what_the_user_has_set_goes_before_what_the_site_has() {
    in_step({{"expl-share", "high"}}, [] {
        const Variables own{{"EXPLSCHED_SPOOL", "/own"},
                            {"EXPLSCHED_KM_SOCKET", "/own"},
                            {"CUDA_MPS_PIPE_DIRECTORY", "/own"}};
        slurm.environment = own;
        std::ofstream(scratch / "control").put('\n');
        CHECK(task_init({"spool=/s", "manager_socket=/s", "mps_pipe_directory=" + scratch.string()}) == 0);
        for (const auto& [name, value] : own) CHECK(slurm.environment[name] == value);
        CHECK(slurm.errors.empty());
    });
}

// A job that is submitted from inside a job inherits what the `sxrun` there has set.
void what_another_sxrun_has_set_is_no_choice() {
    const std::string room = scratch.string() + "/explsched-" + std::to_string(geteuid()) + "-";
    const auto given = [](const std::string& inherited, const char* variable, const std::string& word) {
        slurm.environment = {{variable, inherited}, {"SLURM_JOB_ID", "12"}};
        CHECK(task_init({word}) == 0 && slurm.errors.empty());
        return slurm.environment[variable];
    };
    const auto socket = [&](const std::string& name) {
        return given(room + name + "/km/kernel-manager.sock", "EXPLSCHED_KM_SOCKET", "manager_socket=/site");
    };
    const auto pipes = [&](const std::string& name) {
        return given(room + name + "/mps", "CUDA_MPS_PIPE_DIRECTORY",
                     "mps_pipe_directory=" + scratch.string());
    };
    std::ofstream(scratch / "control").put('\n');
    for (const char* here : {"12-0123456789ab", "gpu-0123456789ab"}) {
        std::filesystem::create_directories(room + here + "/km");
        std::filesystem::create_directories(room + here + "/mps");
        std::ofstream(room + here + "/km/kernel-manager.sock").put('\n');
    }
    in_step({{"expl-share", "high"}}, [&] {
        for (const char* other : {"1-0123456789ab", "123-0123456789ab", "nojob-0123456789ab",
                                  "12-ba9876543210", "gpu-ba9876543210"}) {  // the last two: of another node
            CHECK(socket(other) == "/site" && pipes(other) == scratch.string());
        }
        for (const char* here : {"12-0123456789ab", "gpu-0123456789ab", "mine", "12th"}) {
            CHECK(socket(here).find(room + here) == 0 && pipes(here).find(room + here) == 0);
        }
    });
}

std::string text_of(const std::filesystem::path& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
}

// A manager for each user: the program, which returns when it serves, is told the directory of its socket.
void a_manager_is_started_for_the_user() {
    const std::filesystem::path program = scratch / "manager", told = scratch / "told";
    std::ofstream(program) << "#!/bin/sh\necho $HOME $XDG_CACHE_HOME \"$@\" >> " << told.string()
                           << "\nexit $(cat " << (scratch / "status").string() << ")\n";
    CHECK(chmod(program.c_str(), 0755) == 0);
    const std::string directory = scratch.string() + "/km-" + std::to_string(geteuid());
    const std::vector<std::string> words{"library=" + library, "manager=" + program.string(),
                                         "manager_socket=" + scratch.string() + "/km-%u/kernel-manager.sock"};
    const auto started = [&](const char* option, const char* value, int status, const std::string& policy) {
        std::filesystem::remove(told);
        std::ofstream(scratch / "status") << status;
        in_step({{option, value}}, [&] {
            slurm.environment["HOME"] = "/home/me";
            slurm.environment["XDG_CACHE_HOME"] =
                "/cache";  // where sxrun and sexplsched look for profiles, too
            CHECK(task_init(words) == 0);
            CHECK(slurm.environment["EXPLSCHED_KM_SOCKET"] == directory + "/kernel-manager.sock");
            const bool serves = status == 0 || status == 3;  // this one or another
            CHECK(slurm.errors.empty() == serves);
            if (!serves) CHECK(logged("kernels are not managed: " + program.string()));
        });
        CHECK(text_of(told) == "/home/me /cache --dir " + directory + " --policy " + policy + "\n");
    };
    started("expl-share", "high", 0, "group");
    started("expl-limit", "0.5", 0, "quota");
    for (const int status : {1, 2, 3}) started("expl-share", "high", status, "group");
    std::filesystem::remove(told);
    in_step({{"expl-share", "high"}}, [&] {  // who has one needs none
        slurm.environment["EXPLSCHED_KM_SOCKET"] = "/own";
        CHECK(task_init(words) == 0 && slurm.environment["EXPLSCHED_KM_SOCKET"] == "/own");
    });
    in_step({{"expl-early-stop", nullptr}}, [&] { CHECK(task_init(words) == 0); });
    CHECK(!std::filesystem::exists(told));
    in_step({{"expl-share", "high"}}, [&] {  // a step of a batch job, on another of its nodes
        slurm.environment["EXPLSCHED_KM_SOCKET"] = directory + "/kernel-manager.sock";
        CHECK(task_init(words) == 0);
    });
    CHECK(std::filesystem::exists(told));
    in_step({{"expl-share", "high"}}, [&] {
        CHECK(task_init({"manager=" + program.string(), "manager_socket=/x/socket"}) == 0);
        CHECK(logged("manager_socket= ends with /kernel-manager.sock"));
    });
    in_step({{"expl-share", "high"}}, [&] {
        CHECK(task_init({"manager_socket=/" + std::string(120, 'x')}) == 0 && logged("too long"));
    });
}

void mps_is_named_where_a_daemon_is() {
    const std::string word = "mps_pipe_directory=" + scratch.string();
    std::filesystem::remove(scratch / "control");
    in_step({{"expl-share", "high"}}, [&] {
        CHECK(task_init({word}) == 0 && slurm.environment.count("CUDA_MPS_PIPE_DIRECTORY") == 0);
        std::ofstream(scratch / "control").put('\n');
        CHECK(task_init({word}) == 0 && slurm.environment["CUDA_MPS_PIPE_DIRECTORY"] == scratch.string());
    });
    in_step({}, [&] { CHECK(task_init({word}) == 0 && slurm.environment.empty()); });
}

// Whoever could write it would run code in every user's tasks; one that the linker cannot load would make it
// complain in every process.
void a_library_that_cannot_be_preloaded_is_left_out() {
    const std::filesystem::path copy = scratch / "copy.so", text = scratch / "text.so";
    std::filesystem::copy_file(library, copy);
    std::ofstream(text) << "no library\n";
    const auto left_out = [](const std::string& path, const std::string& why) {
        in_step({{"expl-share", "high"}}, [&] {
            CHECK(task_init({"library=" + path, "manager_socket=/s"}) == 0);
            CHECK(slurm.environment.count("LD_PRELOAD") == 0 &&
                  slurm.environment["EXPLSCHED_SHARE"] == "high");
            CHECK(logged("kernels are not gated") && logged(why));
        });
    };
    left_out(scratch / "missing.so", "No such file");
    left_out(scratch, "its owner alone may write");
    left_out(text, "text.so");
    for (const mode_t mode : {0664, 0646}) {
        CHECK(chmod(copy.c_str(), mode) == 0);
        left_out(copy, "its owner alone may write");
    }
    CHECK(chmod(copy.c_str(), 0755) == 0);
    in_step({{"expl-share", "high"}}, [&] {
        CHECK(task_init({"library=" + copy.string()}) == 0 &&
              slurm.environment["LD_PRELOAD"] == copy.string());
    });
}

// The task starts all the same.
void mistakes_in_plugstack_conf_are_logged_and_nothing_is_set() {
    const std::map<std::string, std::vector<std::string>> mistakes{
        {"unknown word 'libary=/x'", {"libary=/x"}},
        {"'library=x': one absolute path is accepted", {"library=x"}},
        {"'library=': one absolute path is accepted", {"library="}},
        {"'spool=/b': one absolute path is accepted", {"spool=/a", "spool=/b"}},
    };
    for (const auto& mistake : mistakes) {
        in_step({{"expl-share", "high"}}, [&] {
            CHECK(task_init(mistake.second) == 0 && slurm.environment.empty());
            CHECK(logged("plugstack.conf") && logged(mistake.first));
        });
    }
}

void what_slurm_refuses_is_logged_and_the_task_starts() {
    in_step({{"expl-share", "high"}}, [] {
        slurm.refuses = true;
        CHECK(task_init({"library=" + library, "spool=/s"}) == 0);
        CHECK(logged("EXPLSCHED_SHARE: refused") && logged("EXPLSCHED_SPOOL: refused"));
    });
}

}  // namespace

int main(int, char** argv) {
    library = argv[1];
    std::string pattern = (std::filesystem::temp_directory_path() / "spank-XXXXXX").string();
    REQUIRE(mkdtemp(pattern.data()) != nullptr);
    scratch = pattern;
    without_options_a_task_is_left_alone();
    each_way_to_ask_for_sharing_preloads_the_library();
    a_variable_of_the_job_asks_too_and_is_written_as_the_programs_read_it();
    what_the_user_preloads_stays();
    the_kill_switch_leaves_a_task_alone();
    what_the_user_has_set_goes_before_what_the_site_has();
    what_another_sxrun_has_set_is_no_choice();
    a_manager_is_started_for_the_user();
    mps_is_named_where_a_daemon_is();
    a_library_that_cannot_be_preloaded_is_left_out();
    mistakes_in_plugstack_conf_are_logged_and_nothing_is_set();
    what_slurm_refuses_is_logged_and_the_task_starts();
    std::filesystem::remove_all(scratch);
    return check::result();
}
