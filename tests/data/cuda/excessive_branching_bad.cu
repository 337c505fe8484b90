__global__ void mix(float* data) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (threadIdx.x % 4 == 0) {
        data[i] *= 2;
    } else if (threadIdx.x % 4 == 1) {
        data[i] += 3;
    } else if (threadIdx.x % 4 == 2) {
        data[i] = -data[i];
    } else {
        data[i] = 0;
    }
}
