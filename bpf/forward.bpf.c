// SPDX-License-Identifier: MIT OR Apache-2.0
//
// The kernel back end at tc: each frame that comes in by an interface leaves by the paired one, as the socket buffer it is. So its
// checksum state, its segmentation state and its VLAN tag go with it, and a super-frame stays whole.
//
// Attached at tcx ingress by a link, or on clsact by a filter where the kernel has no tcx (before 6.6). Linux 5.15 and later; no loops,
// no kfuncs. Frames are looked at only where something must be known of them: a plain frame with its addresses kept is not touched.
#include "forward.h"

#include <linux/if_packet.h>
#include <linux/in.h>
#include <linux/pkt_cls.h>

// Where a super-frame's payload begins; 0 if its headers are none of those known, as those of tunnels.
static __always_inline __u32 headers(struct __sk_buff *skb, __u32 *tags)
{
	__u32 at = ETH_HLEN, header;
	__u16 protocol = skb->protocol;
	__u8 byte, transport;

	*tags = 0;
	if (is_tag(protocol)) {
		if (bpf_skb_load_bytes(skb, at + 2, &protocol, 2))
			return 0;
		at += VLAN_LEN;
		*tags += VLAN_LEN;
		if (is_tag(protocol)) {
			if (bpf_skb_load_bytes(skb, at + 2, &protocol, 2))
				return 0;
			at += VLAN_LEN;
			*tags += VLAN_LEN;
		}
	}
	if (protocol == bpf_htons(ETH_P_IP)) {
		if (bpf_skb_load_bytes(skb, at, &byte, 1) || bpf_skb_load_bytes(skb, at + 9, &transport, 1))
			return 0;
		header = (byte & 0xf) * 4;
	} else if (protocol == bpf_htons(ETH_P_IPV6)) {
		if (bpf_skb_load_bytes(skb, at + 6, &transport, 1))
			return 0;
		header = 40;
	} else {
		return 0;
	}
	at += header;
	if (transport == IPPROTO_UDP)
		return at + 8;
	if (transport != IPPROTO_TCP || bpf_skb_load_bytes(skb, at + 12, &byte, 1))
		return 0;
	return at + (byte >> 4) * 4;
}

// Bytes of VLAN tags inside a frame.
static __always_inline __u32 tags_inside(struct __sk_buff *skb)
{
	__u16 protocol = skb->protocol;

	if (!is_tag(protocol))
		return 0;
	if (bpf_skb_load_bytes(skb, ETH_HLEN + 2, &protocol, 2) || !is_tag(protocol))
		return VLAN_LEN;
	return 2 * VLAN_LEN;
}

// No inlining: a plain frame's path stays short.
static __noinline int rewrite(struct __sk_buff *skb)
{
	__u16 old[MACS_LEN / 2], new[MACS_LEN / 2];

	if (settings.mac_mode == MAC_UPDATE) {
		new[0] = state.macs[0], new[1] = state.macs[1], new[2] = state.macs[2];
		new[3] = state.macs[3], new[4] = state.macs[4], new[5] = state.macs[5];
	} else {
		if (bpf_skb_load_bytes(skb, 0, old, MACS_LEN))
			return -1;
		new[0] = old[3], new[1] = old[4], new[2] = old[5];
		new[3] = old[0], new[4] = old[1], new[5] = old[2];
	}
	// No need to correct a checksum: a whole-packet one does not cover the Ethernet header before it is pushed, which the redirect does
	// after this (bpf_push_mac_rcsum, net/core/filter.c). Unlike direct access it need not copy the head of every clone.
	return bpf_skb_store_bytes(skb, 0, new, MACS_LEN, 0);
}

SEC("tc")
int l2relay_forward(struct __sk_buff *skb)
{
	struct counters *own = own_counters();
	__u32 length = skb->len, packets = 1, gso_size = skb->gso_size, blocked = state.blocked, limit = state.mtu + ETH_HLEN, tags, at;
	// The kernel has taken a tag off; it counts as part of the frame.
	__u32 bytes = skb->vlan_present ? length + VLAN_LEN : length;
	__u8 first;

	if (!own)
		return TC_ACT_SHOT;
	if (gso_size) {
		at = headers(skb, &tags);
		packets = skb->gso_segs;
		// Of a super-frame from a tap nobody has counted them yet (virtio_net_hdr_to_skb).
		if (!packets)
			packets = (length - at + gso_size - 1) / gso_size;
		length = at ? at + gso_size : 0;
		limit += tags;
	}
	if (blocked) {
		if (blocked == ASIDE)
			return TC_ACT_UNSPEC;
		if (blocked == GATED) {
			if (own->tapped) {
				own->tapped = 0;
				return TC_ACT_UNSPEC;
			}
		}
		if (blocked == 1 + LINK_DOWN)
			LOSE(own, packets, bytes, LINK_DOWN);
		else
			LOSE(own, packets, bytes, MOVED);
		return TC_ACT_SHOT;
	}
	if (length > limit && (gso_size || length > limit + tags_inside(skb))) {
		LOSE(own, packets, bytes, OVERSIZE);
		return TC_ACT_SHOT;
	}
	if (settings.unicast_only && (bpf_skb_load_bytes(skb, 0, &first, 1) || first & 1)) {
		LOSE(own, packets, bytes, FILTERED);
		return TC_ACT_SHOT;
	}
	if (settings.mac_mode != MAC_KEEP && rewrite(skb)) {
		LOSE(own, packets, bytes, REFUSED);
		return TC_ACT_SHOT;
	}
	own->packets += packets;
	own->bytes += bytes;
	return bpf_redirect(settings.target, 0);
}

// While a pair moves between lanes and the kernel: the filter of the lanes' packet sockets. Taps see a frame before tc does, on the same
// CPU and with nothing in between (__netif_receive_skb_core), so each frame has one owner, whenever the gate opens.
SEC("socket")
int l2relay_gate(struct __sk_buff *skb)
{
	struct counters *own = own_counters();

	if (!own || skb->pkt_type == PACKET_OUTGOING)
		return 0;
	own->tapped = state.lanes;
	return state.lanes ? -1 : 0;
}

char LICENSE[] SEC("license") = "MIT OR Apache-2.0";
