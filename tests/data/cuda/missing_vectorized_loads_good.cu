__global__ void norms(const float* points, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float4 p = reinterpret_cast<const float4*>(points)[i];
    out[i] = p.x * p.x + p.y * p.y + p.z * p.z + p.w * p.w;
}
