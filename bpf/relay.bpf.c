// SPDX-License-Identifier: MIT OR Apache-2.0
//
// The XDP program of the relay: each receive queue's frames to the socket that is registered for it.
//
// Attached by dataplane/src/sys/xdp.rs, held by a link. A queue without a socket, and one whose socket is being torn down, passes its
// frames to the stack as if no program were there. Frags are declared (xdp.frags), so that interfaces with jumbo frames take it; it
// looks at no byte of a frame, so it does not matter in how many pieces one comes.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

// Sockets by receive queue. User space sets the size before loading: the interface's queues.
struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, 64);
	__type(key, __u32);
	__type(value, __u32);
} sockets SEC(".maps");

SEC("xdp.frags")
int relay(struct xdp_md *ctx)
{
	// The fallback action in the flags needs Linux 5.3.
	return bpf_redirect_map(&sockets, ctx->rx_queue_index, XDP_PASS);
}

char LICENSE[] SEC("license") = "MIT OR Apache-2.0";
