__global__ void stage(const float* in, float* out) {
    __shared__ float tile[10240];
    for (int i = threadIdx.x; i < 10240; i += 64) tile[i] = in[blockIdx.x * 10240 + i];
    __syncthreads();
    for (int i = threadIdx.x; i < 10240; i += 64) out[blockIdx.x * 10240 + i] = tile[10239 - i];
}

void run(const float* in, float* out, int blocks) { stage<<<blocks, 64>>>(in, out); }
