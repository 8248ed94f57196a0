/* SPDX-License-Identifier: Apache-2.0 */
/* The compiled copy kernel, for every GPU that it is built for. */
	.section .rodata
	.balign 64
	.globl dray_copy_image
	.hidden dray_copy_image
dray_copy_image:
	.incbin IMAGE
	.section .note.GNU-stack,"",@progbits
