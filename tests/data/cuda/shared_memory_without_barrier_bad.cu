__global__ void differences(const float* in, float* out, int n) {
    __shared__ float part[257];
    int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    part[threadIdx.x] = in[i];
    out[i] = part[threadIdx.x + 1] - part[threadIdx.x];
}
