//! What a driver says about its interface: the questions of `ethtool`, by ioctl.
//!
//! Called by `check` and the `kernel` back end, in the network namespace of the interface. The commands and their structures are those of
//! `include/uapi/linux/ethtool.h`; here each is an array of 32-bit words, as all their fields are made of such.

use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;

const GDRVINFO: u32 = 0x03;
const GSTRINGS: u32 = 0x1b;
#[cfg(feature = "xdp")]
const GSTATS: u32 = 0x1d;
const GSSET_INFO: u32 = 0x37;
const GFEATURES: u32 = 0x3a;
const GCHANNELS: u32 = 0x3c;
/// The string set with the names of the driver's statistics.
#[cfg(feature = "xdp")]
const SS_STATS: u32 = 1;
/// The string set with the names of the features.
const SS_FEATURES: u32 = 4;
/// By how many strings a set may have grown since it was counted: those of an interface that was given all the queues there can be
/// meanwhile (a dozen a queue, of 4096: `IFLA_NUM_TX_QUEUES`, `net/core/rtnetlink.c`).
const SPARE: usize = 12 * 4096;
/// Words of a string (`ETH_GSTRING_LEN` is 32 bytes).
const STRING_WORDS: usize = 8;

/// An interface that answers such questions.
pub(crate) struct Ethtool {
    /// Any socket does: its namespace is what counts.
    socket: UnixDatagram,
    name: String,
}

/// Something a device can do for the kernel, or the kernel for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Feature {
    /// As `ethtool -k` calls it: `tx-tcp-segmentation`.
    pub(crate) name: String,
    /// Whether it is on.
    pub(crate) on: bool,
}

/// How many queues are in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Channels {
    /// For receiving only.
    pub(crate) rx: u32,
    /// For sending only.
    pub(crate) tx: u32,
    /// For both.
    pub(crate) combined: u32,
}

impl Ethtool {
    /// Prepares to ask about the interface of that name, in the calling thread's namespace.
    pub(crate) fn open(name: &str) -> io::Result<Self> {
        if name.is_empty() || name.len() >= libc::IFNAMSIZ || name.contains('\0') {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(Self {
            socket: UnixDatagram::unbound()?,
            name: name.into(),
        })
    }

    /// The name of its driver.
    pub(crate) fn driver(&self) -> io::Result<String> {
        let mut info = [0; 49];
        info[0] = GDRVINFO;
        // SAFETY: struct ethtool_drvinfo has 196 bytes, 49 words.
        unsafe { self.ask(&mut info) }?;
        Ok(text(&info[1..1 + STRING_WORDS]))
    }

    /// All features that this kernel knows.
    pub(crate) fn features(&self) -> io::Result<Vec<Feature>> {
        let count = self.count(SS_FEATURES)?;
        let names = self.strings(SS_FEATURES, count)?;

        // Of each 32 features one block of four words: available, requested, active, never changed.
        let blocks = count.div_ceil(32);
        let mut states = vec![0; 2 + blocks * 4];
        states[0] = GFEATURES;
        states[1] = u32::try_from(blocks).map_err(io::Error::other)?;
        // SAFETY: after two words come at most as many blocks as the second word says.
        unsafe { self.ask(&mut states) }?;

        let active: Vec<u32> = states[2..].chunks_exact(4).map(|block| block[2]).collect();
        let names = names.into_iter().enumerate();
        let features = names.map(|(bit, name)| Feature {
            name,
            on: active[bit / 32] & (1 << (bit % 32)) != 0,
        });
        Ok(features
            .filter(|feature| !feature.name.is_empty())
            .collect())
    }

    /// Its queues in use.
    pub(crate) fn channels(&self) -> io::Result<Channels> {
        let mut channels = [0; 9];
        channels[0] = GCHANNELS;
        // SAFETY: struct ethtool_channels has 9 words.
        unsafe { self.ask(&mut channels) }?;
        let [_, _, _, _, _, rx, tx, _, combined] = channels;
        Ok(Channels { rx, tx, combined })
    }

    /// What its driver counts, by the driver's names.
    #[cfg(feature = "xdp")]
    pub(crate) fn statistics(&self) -> io::Result<Vec<(String, u64)>> {
        let count = self.count(SS_STATS)?;
        let names = self.strings(SS_STATS, count)?;
        let mut counts = vec![0; 2 + 2 * (count + SPARE)];
        counts[0] = GSTATS;
        // SAFETY: after two words comes a number of two words for each string of the set, and there is room for `SPARE` more.
        unsafe { self.ask(&mut counts) }?;
        let words = counts[2..].as_chunks::<2>().0;
        // The low half comes first where the machine has it first, as in every number.
        let number = |[first, second]: &[u32; 2]| {
            let [a, b] = [first.to_ne_bytes(), second.to_ne_bytes()];
            u64::from_ne_bytes([a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3]])
        };
        Ok(names.into_iter().zip(words.iter().map(number)).collect())
    }

    /// The strings of a set that had that many just now.
    fn strings(&self, set: u32, count: usize) -> io::Result<Vec<String>> {
        let mut names = vec![0; 3 + (count + SPARE) * STRING_WORDS];
        names[0] = GSTRINGS;
        names[1] = set;
        // SAFETY: after three words come as many strings as the set has, and there is room for `SPARE` more.
        unsafe { self.ask(&mut names) }?;
        let names = names[3..].chunks_exact(STRING_WORDS).take(count);
        Ok(names.map(text).collect())
    }

    fn count(&self, set: u32) -> io::Result<usize> {
        let mask = (1_u64 << set).to_ne_bytes();
        let [a, b, c, d, e, f, g, h] = mask;
        let mut info = [
            GSSET_INFO,
            0,
            u32::from_ne_bytes([a, b, c, d]),
            u32::from_ne_bytes([e, f, g, h]),
            0,
        ];
        // SAFETY: after four words comes one for each bit that is set in the mask of sets, which is one.
        unsafe { self.ask(&mut info) }?;
        usize::try_from(info[4]).map_err(io::Error::other)
    }

    /// Lets the kernel fill in the answer.
    ///
    /// # Safety
    ///
    /// `command` must be as long as what the kernel reads and writes for the command in its first word.
    unsafe fn ask(&self, command: &mut [u32]) -> io::Result<()> {
        let mut request = libc::ifreq {
            ifr_name: [0; libc::IFNAMSIZ],
            ifr_ifru: libc::__c_anonymous_ifr_ifru {
                ifru_data: command.as_mut_ptr().cast(),
            },
        };
        for (to, from) in request.ifr_name.iter_mut().zip(self.name.bytes()) {
            *to = from.cast_signed() as libc::c_char;
        }
        // SAFETY: the request names the command's memory, which is long enough, as the caller promises.
        match unsafe {
            libc::ioctl(
                self.socket.as_raw_fd(),
                libc::SIOCETHTOOL as libc::Ioctl,
                &raw mut request,
            )
        } {
            0.. => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// The text in some words, up to the first zero byte.
fn text(words: &[u32]) -> String {
    let bytes = words.iter().flat_map(|word| word.to_ne_bytes());
    let bytes: Vec<u8> = bytes.take_while(|&byte| byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::sys::netns::{self, testing::Namespace};

    #[test]
    fn what_is_not_there_does_not_answer() {
        let error = Ethtool::open("no-such-one").unwrap().driver().unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENODEV));
        for name in ["", "a-name-much-too-long", "a\0b"] {
            assert!(Ethtool::open(name).is_err(), "{name:?}");
        }
    }

    #[test]
    fn a_veth_answers_as_it_does_to_ethtool() {
        let Some(namespace) = Namespace::make("ethtool") else {
            return;
        };
        namespace.ip("link add name va numtxqueues 2 numrxqueues 2 type veth peer name vb");
        let inside = |work: fn(&Ethtool) -> io::Result<String>| {
            let ask = || work(&Ethtool::open("va")?);
            netns::within(Some(&namespace.name), ask).unwrap().unwrap()
        };
        assert_eq!(inside(Ethtool::driver), "veth");
        assert_eq!(
            inside(|ethtool| Ok(format!("{:?}", ethtool.channels()?))),
            "Channels { rx: 2, tx: 2, combined: 0 }"
        );

        let switch = |state| {
            let arguments = [
                "netns",
                "exec",
                &namespace.name,
                "ethtool",
                "-K",
                "va",
                "tx-udp-segmentation",
                state,
            ];
            let output = Command::new("ip").args(arguments).output().unwrap();
            assert!(output.status.success(), "{output:?}");
        };
        let on = || {
            inside(|ethtool| {
                let on = ethtool.features()?.into_iter().filter(|feature| feature.on);
                Ok(on.map(|feature| feature.name + " ").collect())
            })
        };
        let before = on();
        assert!(
            before.contains("tx-tcp-segmentation ") && before.contains("tx-udp-segmentation "),
            "{before}"
        );
        assert!(!before.contains("rx-lro "), "{before}");
        switch("off");
        let after = on();
        assert_eq!(after.replace("tx-udp-segmentation ", ""), after);
        assert_eq!(before.replace("tx-udp-segmentation ", ""), after);
    }
}
