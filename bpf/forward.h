// SPDX-License-Identifier: MIT OR Apache-2.0
//
// What the two forwarding programs share: settings, state and counters of one direction. Every direction of every pair has programs
// and maps of its own, so nothing is looked up to find the way. Read and written by dataplane/src/sys/forward.rs.
#ifndef FORWARD_H
#define FORWARD_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define VLAN_LEN 4
#define MACS_LEN (2 * ETH_ALEN)

enum mac_mode { MAC_KEEP, MAC_SWAP, MAC_UPDATE };

// In the order of the counters, and of REASONS in forward.rs.
enum reason { OVERSIZE, LINK_DOWN, FILTERED, MOVED, GSO_UNSUPPORTED, REFUSED, REASONS };

// Constant once loaded, so the verifier removes what is not asked for.
struct settings {
	__u32 target;		// index of the interface to send by
	__u32 mac_mode;
	__u32 unicast_only;	// discard group addresses
	__u32 complete;		// checksums may be left to a device: complete them (XDP)
};
const volatile struct settings settings = {};

// Nothing in the way.
#define OPEN 0
// As `blocked`: no frame is looked at, for the lanes have the port.
#define ASIDE 0xfe
// As `blocked`: lanes have the port, as far as the gate has given it to them.
#define GATED 0xff

// Written by user space at any time.
struct state {
	__u32 blocked;		// OPEN, GATED, or 1 + the reason for which every frame is dropped
	__u32 mtu;		// of the target
	__u32 lanes;		// the gate is open
	__u16 macs[MACS_LEN / 2];	// for MAC_UPDATE: destination, source, as they lie in a frame
};
volatile struct state state = {};

// Written by one CPU, in softirq, so without atomics. What was received is not among it: it is the sum of what was sent and what was
// dropped, so that a reader who catches a CPU between two stores sees no packet twice and none too few.
struct counters {
	__u64 packets;		// sent; a super-frame counts its segments
	__u64 bytes;		// sent
	__u64 lost_bytes;
	__u64 lost[REASONS];
	__u64 tapped;		// the gate has given the frame at hand to a lane
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct counters);
} counters SEC(".maps");

static __always_inline struct counters *own_counters(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&counters, &zero);
}

// Without CAP_PERFMON the verifier takes no index that differs from path to path, so the reason must be a constant where this is used.
// The comment keeps the compiler from merging uses into one with such an index.
#define LOSE(own, packets, bytes, reason)			\
	do {							\
		asm volatile("# " #reason ::: "memory");	\
		(own)->lost_bytes += (bytes);			\
		(own)->lost[reason] += (packets);		\
		asm volatile("# " #reason ::: "memory");	\
	} while (0)

static __always_inline int is_tag(__u16 protocol)
{
	return protocol == bpf_htons(ETH_P_8021Q) || protocol == bpf_htons(ETH_P_8021AD);
}

#endif
