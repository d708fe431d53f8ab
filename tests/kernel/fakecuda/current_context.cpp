#include "tests/kernel/fakecuda/current_context.hpp"

#include <algorithm>

namespace fakecuda {

__attribute__((tls_model("initial-exec"))) __thread CUcontext thread_context = nullptr;

namespace {

thread_local std::vector<CUcontext> stack;

void show_top() { thread_context = stack.empty() ? nullptr : stack.back(); }

}  // namespace

void push_context(CUcontext context) {
    stack.push_back(context);
    show_top();
}

CUcontext pop_context() {
    CUcontext top = current_context();
    if (!stack.empty()) stack.pop_back();
    show_top();
    return top;
}

void forget_context(CUcontext context) {
    stack.erase(std::remove(stack.begin(), stack.end(), context), stack.end());
    show_top();
}

}  // namespace fakecuda
