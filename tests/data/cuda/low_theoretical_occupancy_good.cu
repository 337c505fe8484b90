__global__ void stage(const float* in, float* out) {
    __shared__ float tile[1024];
    for (int i = threadIdx.x; i < 1024; i += 256) tile[i] = in[blockIdx.x * 1024 + i];
    __syncthreads();
    for (int i = threadIdx.x; i < 1024; i += 256) out[blockIdx.x * 1024 + i] = tile[1023 - i];
}

void run(const float* in, float* out, int blocks) { stage<<<blocks, 256>>>(in, out); }
