//! The internet checksum (RFC 1071), and completing one that was left to the device.
//!
//! Called by whatever hands a frame to a path without checksum offload, by [`segment`](super::segment), and by
//! coalescing, which verifies before it merges. A sum is a plain number in the meaning of big-endian 16-bit words:
//! sums of pieces are added with `+` (65 000 of them fit), and so are lengths and port numbers. Every piece but the
//! last must have an even length. `fold(sum)` of what is covered, checksum field included, is `0xffff` if it is right.

/// The one's-complement sum of `bytes`, at most `0xffff`. An odd last byte counts as if a zero followed.
#[inline]
pub fn sum(bytes: &[u8]) -> u32 {
    // The sum does not depend on byte order except that its own two bytes swap with it (RFC 1071, 2(B)), and words may
    // be 32 bits wide. So: native 32-bit words into eight 64-bit lanes, which cannot overflow below 16 GiB and which
    // the compiler turns into vector adds. Of four variants this was the quickest or close to it at 20 to 65 000 bytes
    // (31 bytes/ns at 1460 with baseline x86-64; 128-bit accumulators 28, 64-bit words cut in halves 26).
    let mut lanes = [0u64; 8];
    let (blocks, rest) = bytes.as_chunks::<32>();
    for block in blocks {
        let (words, _) = block.as_chunks::<4>();
        for (lane, word) in lanes.iter_mut().zip(words) {
            *lane += u64::from(u32::from_ne_bytes(*word));
        }
    }
    let mut total: u64 = lanes.iter().sum();
    let (words, rest) = rest.as_chunks::<4>();
    for word in words {
        total += u64::from(u32::from_ne_bytes(*word));
    }
    let last = match *rest {
        [a, b, c] => [a, b, c, 0],
        [a, b] => [a, b, 0, 0],
        [a] => [a, 0, 0, 0],
        _ => [0; 4],
    };
    total += u64::from(u32::from_ne_bytes(last));
    // Below 2^33, then at most 2^32 - 1 + 1: fits, and the second round clears the carry of the first.
    total = (total >> 32) + (total & 0xffff_ffff);
    total = (total >> 32) + (total & 0xffff_ffff);
    u32::from(u16::from_be(fold(total as u32)))
}

/// Folds carries back in until 16 bits are left. The checksum to write is the complement of this.
#[inline]
pub fn fold(sum: u32) -> u16 {
    let once = (sum >> 16) + (sum & 0xffff);
    ((once >> 16) + (once & 0xffff)) as u16
}

/// The sum of the IPv4 pseudo-header for `len` bytes of transport header and payload.
#[inline]
pub fn pseudo_v4(src: [u8; 4], dst: [u8; 4], protocol: u8, len: usize) -> u32 {
    sum(&src) + sum(&dst) + u32::from(protocol) + length(len)
}

/// The sum of the IPv6 pseudo-header for `len` bytes of transport header and payload. `dst` is the final destination
/// where a routing header is present.
#[inline]
pub fn pseudo_v6(src: &[u8; 16], dst: &[u8; 16], protocol: u8, len: usize) -> u32 {
    sum(src) + sum(dst) + u32::from(protocol) + length(len)
}

/// A length as the pseudo-headers count it: the IPv6 one has 32 bits for it.
#[inline]
fn length(len: usize) -> u32 {
    let len = len as u32;
    (len >> 16) + (len & 0xffff)
}

/// Completes a partial checksum: sums from `csum_start` to the end of the frame, and writes the complement at
/// `csum_start + csum_offset`, where the sender has left the folded sum of the pseudo-header. A result of zero is
/// written as `0xffff`, for UDP's sake; to everything else the two are equal. This is the kernel's
/// `skb_checksum_help` (`net/core/dev.c`). Returns `false`, with the frame untouched, if the field is not in it.
#[inline]
#[must_use]
pub fn complete(frame: &mut [u8], csum_start: usize, csum_offset: usize) -> bool {
    let Some(covered) = frame.get_mut(csum_start..) else {
        return false;
    };
    let check = nonzero(!fold(sum(covered)));
    super::put_be16(covered, csum_offset, check).is_some()
}

/// Zero means "no checksum" to UDP, so a computed zero is written as its equal, `0xffff`.
#[inline]
pub(super) fn nonzero(check: u16) -> u16 {
    if check == 0 { 0xffff } else { check }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// RFC 1071 as it is written down, one word at a time.
    fn naive(bytes: &[u8]) -> u16 {
        let mut sum = 0u32;
        for pair in bytes.chunks(2) {
            sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
            if sum > 0xffff {
                sum -= 0xffff;
            }
        }
        sum as u16
    }

    #[test]
    fn example_of_the_rfc() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(fold(sum(&bytes)), 0xddf2);
    }

    #[test]
    fn equals_the_naive_sum_at_every_alignment_and_length() {
        let bytes: Vec<u8> = (0..400u32)
            .map(|n| (n.wrapping_mul(2_654_435_761) >> 11) as u8)
            .collect();
        for start in 0..64 {
            for end in start..bytes.len() {
                let piece = &bytes[start..end];
                assert_eq!(fold(sum(piece)), naive(piece), "{start}..{end}");
            }
        }
    }

    #[test]
    fn the_extremes() {
        for len in [0, 1, 2, 3, 14, 65_535, 65_550, 200_001] {
            assert_eq!(sum(&vec![0; len]), 0);
            let ones = vec![0xff; len];
            assert_eq!(fold(sum(&ones)), naive(&ones), "{len}");
        }
        assert_eq!(fold(u32::MAX), 0xffff);
        assert_eq!(fold(0), 0);
    }

    #[test]
    fn pseudo_headers_equal_their_bytes() {
        let (src, dst) = ([10, 0, 255, 1], [192, 168, 254, 253]);
        let bytes = [&src[..], &dst, &[0, 17, 0x30, 0x39]].concat();
        assert_eq!(fold(pseudo_v4(src, dst, 17, 12_345)), naive(&bytes));

        let (src, dst): ([u8; 16], [u8; 16]) = ([0xfe; 16], [0xa7; 16]);
        let len = 70_000u32;
        let bytes = [&src[..], &dst, &len.to_be_bytes(), &[0, 0, 0, 6]].concat();
        assert_eq!(fold(pseudo_v6(&src, &dst, 6, len as usize)), naive(&bytes));
    }

    #[test]
    fn a_zero_result_is_written_as_ones() {
        // Field and payload cancel out: the sum is 0xffff, its complement zero.
        let mut frame = [9, 9, 0xff, 0xf0, 0x00, 0x0f];
        assert!(complete(&mut frame, 2, 2));
        assert_eq!(frame, [9, 9, 0xff, 0xf0, 0xff, 0xff]);
    }

    #[test]
    fn a_field_outside_the_frame_is_refused() {
        let mut frame = [1; 10];
        for (start, offset) in [
            (10, 0),
            (11, 0),
            (2, 7),
            (9, 0),
            (usize::MAX, 0),
            (0, usize::MAX),
            (usize::MAX, usize::MAX),
        ] {
            assert!(!complete(&mut frame, start, offset), "{start} {offset}");
        }
        assert_eq!(frame, [1; 10]);
        assert!(complete(&mut frame, 2, 6));
    }

    proptest! {
        #[test]
        fn equals_the_naive_sum(bytes in prop::collection::vec(any::<u8>(), 0..3000), skip in 0usize..64) {
            let piece = bytes.get(skip..).unwrap_or_default();
            prop_assert_eq!(fold(sum(piece)), naive(piece));
        }

        #[test]
        fn even_pieces_add_up(bytes in prop::collection::vec(any::<u8>(), 0..300), cut in 0usize..150) {
            let (a, b) = bytes.split_at((2 * cut).min(bytes.len()));
            prop_assert_eq!(fold(sum(a) + sum(b)), naive(&bytes));
        }

        #[test]
        fn a_completed_checksum_verifies(
            mut frame in prop::collection::vec(any::<u8>(), 30..200),
            start in 0usize..20,
            pseudo: u16,
        ) {
            frame[start + 6..start + 8].copy_from_slice(&pseudo.to_be_bytes());
            prop_assert!(complete(&mut frame, start, 6));
            prop_assert_eq!(fold(sum(&frame[start..]) + u32::from(pseudo)), 0xffff);
        }
    }
}
