extern __shared__ float dynamic[];

__global__ void stage(const float* in, float* out, int size) {
    __shared__ float left[16][64];
    left[threadIdx.y][threadIdx.x] = in[threadIdx.y * 64 + threadIdx.x];
    dynamic[threadIdx.x] = in[size + threadIdx.x];
    __syncthreads();
    out[threadIdx.x] = left[threadIdx.y][threadIdx.x] * dynamic[63 - threadIdx.x];
}
