// The contexts of the calling thread: a stack, whose top is current.
#pragma once

#include "tests/kernel/fakecuda/objects.hpp"

namespace fakecuda {

// Read by every launch, which has to be cheap: launches are what benchmarks of interposers subtract.
extern __attribute__((tls_model("initial-exec"))) __thread CUcontext thread_context;

inline CUcontext current_context() { return thread_context; }

void push_context(CUcontext context);
CUcontext pop_context();  // nullptr if there is none
// Takes a context that is going away out of the calling thread's stack.
void forget_context(CUcontext context);

}  // namespace fakecuda
