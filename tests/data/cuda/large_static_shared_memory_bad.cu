__global__ void stage(const float* in, float* out) {
    __shared__ float left[64][80], right[64][80];
    for (int row = threadIdx.y; row < 64; row += blockDim.y) {
        left[row][threadIdx.x] = in[row * 64 + threadIdx.x];
        right[row][threadIdx.x] = in[4096 + row * 64 + threadIdx.x];
    }
    __syncthreads();
    out[threadIdx.x] = left[threadIdx.y][threadIdx.x] * right[63 - threadIdx.y][threadIdx.x];
}
