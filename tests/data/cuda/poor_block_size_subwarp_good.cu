__global__ void scale(float* data) { data[blockIdx.x * 256 + threadIdx.x] *= 2; }
__global__ void once(float* data) { data[threadIdx.x] *= 2; }

void run(float* data, int blocks, int threads) {
    scale<<<blocks, 256>>>(data);
    scale<<<blocks, threads>>>(data);
    once<<<1, 16>>>(data);
}
