// SPDX-License-Identifier: MIT OR Apache-2.0
//
// The kernel back end at XDP, where that is asked for: each frame that comes in by an interface leaves by the paired one, before the kernel
// has made a socket buffer of it. A checksum that its sender left to the device is completed, for an XDP frame can't say that it is to be.
//
// Attached in the driver by a link. Linux 5.15 and later; loops with a constant bound, no kfuncs. The length of a frame is the difference
// of two pointers, which the verifier allows with CAP_PERFMON.
#include "forward.h"

#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>

// Where it goes to. The one entry leaves the map with its interface.
struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} ports SEC(".maps");

// What bpf_csum_diff takes at once (MAX_BPF_STACK).
#define CHUNK 512
// As many as the longest frame has: a page, less the head and the tail that drivers keep.
#define CHUNKS 7

static __always_inline __u16 fold(__u64 sum)
{
	sum = (sum >> 32) + (sum & 0xffffffff);
	sum = (sum >> 32) + (sum & 0xffffffff);
	sum = (sum >> 16) + (sum & 0xffff);
	sum = (sum >> 16) + (sum & 0xffff);
	return (sum >> 16) + (sum & 0xffff);
}

// The rest of a segment begins `left` bytes before its end. The mask tells the verifier what `CHUNKS` does.
#define REST (data + ((stop - left) & 0xfff))

// A part of the rest, where the number of its bytes has this bit. Both ways leave the verifier with the same knowledge.
#define ADD(bytes)							\
	if (left & (bytes)) {						\
		if (REST + (bytes) > end)				\
			return;						\
		sum = (__u32)bpf_csum_diff(0, 0, REST, bytes, sum);	\
	}								\
	left &= (bytes) - 1;

// Completes the checksum of TCP or UDP if it is partial, which shows by its value: the sum of the pseudo-header, not complemented. A whole
// one that has this value by chance comes out as it was.
static __noinline void complete(struct xdp_md *xdp)
{
	void *data = (void *)(long)xdp->data, *end = (void *)(long)xdp->data_end;
	struct ethhdr *ethernet = data;
	__u32 at = ETH_HLEN, left, stop, sum, where;
	__u16 protocol, *check;
	__u64 pseudo;
	__u8 transport;

	if (data + ETH_HLEN > end)
		return;
	protocol = ethernet->h_proto;
	for (int tags = 0; tags < 2 && is_tag(protocol); tags++) {
		if (data + at + VLAN_LEN > end)
			return;
		protocol = *(__u16 *)(data + at + 2);
		at += VLAN_LEN;
	}
	if (protocol == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip = data + at;
		__u32 header;

		if ((void *)(ip + 1) > end)
			return;
		header = ip->ihl * 4;
		left = bpf_ntohs(ip->tot_len);
		// No device completes the sum of a fragment.
		if (header < sizeof(*ip) || left < header || ip->frag_off & bpf_htons(0x3fff))
			return;
		left -= header;
		transport = ip->protocol;
		pseudo = (__u32)bpf_csum_diff(0, 0, &ip->saddr, 8, 0);
		at += header;
	} else if (protocol == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr *ip = data + at;

		if ((void *)(ip + 1) > end)
			return;
		left = bpf_ntohs(ip->payload_len);
		transport = ip->nexthdr;
		pseudo = (__u32)bpf_csum_diff(0, 0, (__be32 *)&ip->saddr, 32, 0);
		at += sizeof(*ip);
	} else {
		return;
	}
	if (transport == IPPROTO_TCP)
		where = at + 16;
	else if (transport == IPPROTO_UDP)
		where = at + 6;
	else
		return;
	check = data + where;
	if ((void *)(check + 1) > end || *check != fold(pseudo + bpf_htons(left) + bpf_htons(transport)))
		return;
	// The field has the pseudo-header in it.
	sum = 0;
	stop = at + left;
	for (int chunk = 0; chunk < CHUNKS && left >= CHUNK; chunk++) {
		if (REST + CHUNK > end)
			return;
		sum = (__u32)bpf_csum_diff(0, 0, REST, CHUNK, sum);
		left -= CHUNK;
	}
	if (left >= CHUNK)
		return;
	ADD(256)
	ADD(128)
	ADD(64)
	ADD(32)
	ADD(16)
	ADD(8)
	ADD(4)
	pseudo = sum;
	if (left & 2) {
		if (REST + 2 > end)
			return;
		pseudo += *(__u16 *)REST;
	}
	left &= 1;
	if (left) {
		if (REST + 1 > end)
			return;
		pseudo += bpf_htons((__u16)(*(__u8 *)REST << 8));
	}
	protocol = ~fold(pseudo);
	// Of UDP, 0 would say that there is none (csum_fold(…) ?: CSUM_MANGLED_0).
	*check = protocol ? protocol : 0xffff;
}

static __always_inline void rewrite(__u16 *macs)
{
	__u16 source[ETH_ALEN / 2] = { macs[3], macs[4], macs[5] };

	if (settings.mac_mode == MAC_UPDATE) {
		for (int at = 0; at < MACS_LEN / 2; at++)
			macs[at] = state.macs[at];
	} else {
		macs[3] = macs[0], macs[4] = macs[1], macs[5] = macs[2];
		macs[0] = source[0], macs[1] = source[1], macs[2] = source[2];
	}
}

SEC("xdp")
int l2relay_devmap(struct xdp_md *xdp)
{
	void *data = (void *)(long)xdp->data, *end = (void *)(long)xdp->data_end;
	struct counters *own = own_counters();
	__u32 bytes = end - data, blocked = state.blocked, limit = state.mtu + ETH_HLEN;
	struct ethhdr *ethernet = data;

	if (!own)
		return XDP_DROP;
	if (blocked == ASIDE || (blocked == GATED && state.lanes))
		return XDP_PASS;
	if (data + ETH_HLEN > end) {
		LOSE(own, 1, bytes, REFUSED);
		return XDP_DROP;
	}
	if (blocked) {
		if (blocked == 1 + LINK_DOWN)
			LOSE(own, 1, bytes, LINK_DOWN);
		else
			LOSE(own, 1, bytes, MOVED);
		return XDP_DROP;
	}
	// Room for one tag, as the redirect has (xdp_ok_fwd_dev, include/linux/filter.h).
	if (bytes > limit && (bytes > limit + VLAN_LEN || !is_tag(ethernet->h_proto))) {
		LOSE(own, 1, bytes, OVERSIZE);
		return XDP_DROP;
	}
	if (settings.unicast_only && ethernet->h_dest[0] & 1) {
		LOSE(own, 1, bytes, FILTERED);
		return XDP_DROP;
	}
	if (settings.complete)
		complete(xdp);
	if (settings.mac_mode != MAC_KEEP)
		rewrite(data);
	if (bpf_redirect_map(&ports, 0, XDP_DROP) != XDP_REDIRECT) {
		LOSE(own, 1, bytes, LINK_DOWN);
		return XDP_DROP;
	}
	own->packets++;
	own->bytes += bytes;
	return XDP_REDIRECT;
}

char LICENSE[] SEC("license") = "MIT OR Apache-2.0";
