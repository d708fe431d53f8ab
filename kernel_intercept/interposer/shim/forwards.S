// One function per driver export that jumps to the real one through a slot, which the first call fills.
//
// The arguments are the real function's business, so every register that can hold one is kept.

#if !defined(__x86_64__)
#error "the shim is built for x86_64 only"
#endif

    .bss
    .p2align 3
slots:
    .set    count, 0
#define FORWARD(name) .set count, count + 1
#include "kernel_intercept/interposer/shim/driver_exports.def"
#undef FORWARD
    .skip   8 * count

    .section .rodata
    .p2align 3
    .globl  explsched_shim_names        // offsets from here, so that no relocation is needed
    .hidden explsched_shim_names
explsched_shim_names:
.macro name_offset name
    .long   .Lname_\name - explsched_shim_names
.endm
#define FORWARD(name) name_offset name
#include "kernel_intercept/interposer/shim/driver_exports.def"
#undef FORWARD
.macro name_text name
.Lname_\name:
    .asciz  "\name"
.endm
#define FORWARD(name) name_text name
#include "kernel_intercept/interposer/shim/driver_exports.def"
#undef FORWARD

    .text
    .set    index, 0
.macro forward name
    .globl  \name
    .type   \name, @function
    .p2align 4
\name:
    endbr64
    movq    slots + 8 * index(%rip), %r11
    testq   %r11, %r11
    jz      1f
    jmp     *%r11
1:  movl    $index, %r11d
    jmp     fill_slot
    .size   \name, . - \name
    .set    index, index + 1
.endm
#define FORWARD(name) forward name
#include "kernel_intercept/interposer/shim/driver_exports.def"
#undef FORWARD

    .type   fill_slot, @function
    .p2align 4
fill_slot:
    .cfi_startproc
    pushq   %rbp
    .cfi_def_cfa_offset 16
    .cfi_offset %rbp, -16
    movq    %rsp, %rbp
    .cfi_def_cfa_register %rbp
    pushq   %rdi
    pushq   %rsi
    pushq   %rdx
    pushq   %rcx
    pushq   %r8
    pushq   %r9
    pushq   %rax
    pushq   %r11
    subq    $128, %rsp
    movups  %xmm0, (%rsp)
    movups  %xmm1, 16(%rsp)
    movups  %xmm2, 32(%rsp)
    movups  %xmm3, 48(%rsp)
    movups  %xmm4, 64(%rsp)
    movups  %xmm5, 80(%rsp)
    movups  %xmm6, 96(%rsp)
    movups  %xmm7, 112(%rsp)
    movl    %r11d, %edi
    leaq    slots(%rip), %rsi
    call    explsched_shim_resolve      // (index, slots): what to jump to, never null
    movups  (%rsp), %xmm0
    movups  16(%rsp), %xmm1
    movups  32(%rsp), %xmm2
    movups  48(%rsp), %xmm3
    movups  64(%rsp), %xmm4
    movups  80(%rsp), %xmm5
    movups  96(%rsp), %xmm6
    movups  112(%rsp), %xmm7
    addq    $128, %rsp
    popq    %r11
    movq    %rax, %r11
    popq    %rax
    popq    %r9
    popq    %r8
    popq    %rcx
    popq    %rdx
    popq    %rsi
    popq    %rdi
    popq    %rbp
    .cfi_def_cfa %rsp, 8
    jmp     *%r11
    .cfi_endproc
    .size   fill_slot, . - fill_slot

    .section .note.GNU-stack, "", %progbits
