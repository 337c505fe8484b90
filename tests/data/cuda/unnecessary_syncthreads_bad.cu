__global__ void scale(const float* in, float* out, float by, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float value = i < n ? in[i] : 0;
    __syncthreads();
    if (i < n) out[i] = by * value;
}

__global__ void reverse(float* data) {
    __shared__ float part[256];
    part[threadIdx.x] = data[threadIdx.x];
    __syncthreads();
    __syncthreads();
    data[threadIdx.x] = part[255 - threadIdx.x];
    __syncthreads();
}
