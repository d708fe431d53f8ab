// dlsym as the program sees it.
//
// The C library resolves RTLD_NEXT relative to the library that the return address lies in. So the C
// library's dlsym must be entered by a jump, with the caller's return address in place: a call from a
// function of ours would make it search after this library instead of after the caller.
//
// explsched_route_dlsym(handle, name, return address) returns a pair: where to jump with the caller's
// arguments, or null and the answer itself.

#if defined(__CET__)
#include <cet.h>
#endif

#if defined(__x86_64__)

    .text
    .globl  dlsym
    .type   dlsym, @function
    .p2align 4
dlsym:
    .cfi_startproc
#if defined(__CET__)
    _CET_ENDBR
#endif
    movq    (%rsp), %rdx
    pushq   %rdi
    .cfi_adjust_cfa_offset 8
    pushq   %rsi
    .cfi_adjust_cfa_offset 8
    subq    $8, %rsp                // calls need a stack aligned to 16
    .cfi_adjust_cfa_offset 8
    call    explsched_route_dlsym
    addq    $8, %rsp
    .cfi_adjust_cfa_offset -8
    popq    %rsi
    .cfi_adjust_cfa_offset -8
    popq    %rdi
    .cfi_adjust_cfa_offset -8
    testq   %rax, %rax
    jz      .Lanswer
    jmp     *%rax
.Lanswer:
    movq    %rdx, %rax
    ret
    .cfi_endproc
    .size   dlsym, .-dlsym

#elif defined(__aarch64__)

    .text
    .globl  dlsym
    .type   dlsym, %function
    .p2align 4
dlsym:
    .cfi_startproc
    hint    #34                     // bti c, a no-op where it is unknown
    stp     x29, x30, [sp, #-32]!
    .cfi_def_cfa_offset 32
    .cfi_offset 29, -32
    .cfi_offset 30, -24
    mov     x29, sp
    stp     x0, x1, [sp, #16]
    mov     x2, x30
    bl      explsched_route_dlsym
    mov     x16, x0
    mov     x17, x1
    ldp     x0, x1, [sp, #16]
    ldp     x29, x30, [sp], #32
    .cfi_restore 29
    .cfi_restore 30
    .cfi_def_cfa_offset 0
    cbz     x16, .Lanswer
    br      x16
.Lanswer:
    mov     x0, x17
    ret
    .cfi_endproc
    .size   dlsym, .-dlsym

#else
#error "the CUDA driver exists for x86_64 and aarch64 only"
#endif

    .section .note.GNU-stack, "", %progbits
