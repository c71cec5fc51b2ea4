"""Small kernels for the tests of launches on a device, in PTX: copies by tensor map, a sum in two launches."""

from __future__ import annotations

HEADER = ".version 8.0\n.target sm_90\n.address_size 64\n"
TILE = 32  # floats along both axes of a copied box

# `into` gets the box at (32 x, 32 y) of `from`; one thread of a block does it
COPY = (
    HEADER
    + """
.visible .entry copy_tiles(.param .align 64 .b8 source[128], .param .align 64 .b8 target[128])
{
  .shared .align 128 .b8 tile[4096];
  .shared .align 8 .b64 ready;
  .reg .b64 %d<4>; .reg .b32 %r<8>; .reg .pred %p<2>;
  mov.u32 %r0, %tid.x; setp.ne.u32 %p0, %r0, 0; @%p0 bra DONE;
  mov.b64 %d0, source; cvta.param.u64 %d0, %d0;
  mov.b64 %d1, target; cvta.param.u64 %d1, %d1;
  mov.u32 %r1, tile; mov.u32 %r2, ready;
  mov.u32 %r3, %ctaid.x; shl.b32 %r3, %r3, 5;
  mov.u32 %r4, %ctaid.y; shl.b32 %r4, %r4, 5;
  mbarrier.init.shared.b64 [%r2], 1;
  fence.proxy.async;
  mbarrier.arrive.expect_tx.shared.b64 %d2, [%r2], 4096;
  cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%d0, {%r3, %r4}], [%r2];
WAIT:
  mbarrier.try_wait.parity.shared.b64 %p1, [%r2], 0;
  @!%p1 bra WAIT;
  cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%d1, {%r3, %r4}], [%r1];
  cp.async.bulk.commit_group;
  cp.async.bulk.wait_group 0;
DONE:
  ret;
}
"""
)

# entry z of a map over two buffers goes to entry z of the target, or to the other one where they are swapped
_THIRD = "  mov.u32 %r5, %ctaid.z; ld.param.u32 %r6, [swapped]; xor.b32 %r7, %r5, %r6;\n"
COPY_PAIR = (
    COPY.replace("copy_tiles", "copy_pair")
    .replace("target[128])", "target[128], .param .u32 swapped)")
    .replace("  mbarrier.init", f"{_THIRD}  mbarrier.init")
    .replace("tensor.2d", "tensor.3d")
    .replace("[%d0, {%r3, %r4}]", "[%d0, {%r3, %r4, %r5}]")
    .replace("[%d1, {%r3, %r4}]", "[%d1, {%r3, %r4, %r7}]")
)

# out[i] = sum over k < count of in[i + k * stride], for each thread i; waits for the launch in front of it
SUM = (
    HEADER
    + """
.visible .entry sum_parts(.param .u64 pin, .param .u64 pout, .param .u32 pcount, .param .u32 pstride)
{
  .reg .b64 %d<5>; .reg .b32 %r<8>; .reg .f32 %f<3>; .reg .pred %p<2>;
  griddepcontrol.wait;
  ld.param.u64 %d0, [pin]; ld.param.u64 %d1, [pout]; ld.param.u32 %r0, [pcount]; ld.param.u32 %r1, [pstride];
  cvta.to.global.u64 %d0, %d0; cvta.to.global.u64 %d1, %d1;
  mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x; mad.lo.u32 %r5, %r2, %r3, %r4;
  mul.wide.u32 %d2, %r5, 4; add.u64 %d3, %d0, %d2; add.u64 %d1, %d1, %d2;
  mul.wide.u32 %d4, %r1, 4;
  mov.f32 %f0, 0f00000000;
NEXT:
  ld.global.f32 %f1, [%d3]; add.rn.f32 %f0, %f0, %f1; add.u64 %d3, %d3, %d4;
  sub.u32 %r0, %r0, 1; setp.ne.u32 %p0, %r0, 0; @%p0 bra NEXT;
  st.global.f32 [%d1], %f0;
  griddepcontrol.launch_dependents;
  ret;
}
"""
)
