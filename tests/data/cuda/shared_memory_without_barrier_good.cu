#include <cooperative_groups.h>
namespace cg = cooperative_groups;

__global__ void differences(const float* in, float* out, int n) {
    __shared__ float part[257];
    cg::thread_block block = cg::this_thread_block();
    int i = blockIdx.x * 256 + block.thread_rank();
    if (i < n) part[threadIdx.x] = in[i];
    block.sync();
    if (i + 1 < n && threadIdx.x < 255) out[i] = part[threadIdx.x + 1] - part[threadIdx.x];
}

// What a thread reads is what it has written itself.
__global__ void own(float* out) {
    __shared__ float part[256];
    part[threadIdx.x] = out[threadIdx.x];
    out[threadIdx.x] = 2 * part[threadIdx.x];
}

template <int TILE>
__global__ void lanes(float* out) {
    __shared__ float part[256];
    cg::thread_block_tile<32> tile = cg::tiled_partition<32>(cg::this_thread_block());
    part[threadIdx.x] = out[threadIdx.x];
    tile.sync();
    out[threadIdx.x] = part[threadIdx.x ^ 1] + part[threadIdx.x + TILE];
}
template __global__ void lanes<1>(float*);

__global__ void halves(float* data) {
    __shared__ float part[4][256];
    for (int c = 0; c < 4; ++c) part[c][threadIdx.x] = data[threadIdx.x];
    __syncthreads();
    for (int s = 128; s > 0; s >>= 1) {
        if (threadIdx.x < s) {
            for (int c = 0; c < 4; ++c) part[c][threadIdx.x] += part[c][threadIdx.x + s];
        }
        __syncthreads();
    }
    // What it adds up it has written itself.
    if (threadIdx.x == 0) data[0] = part[0][0];
}
