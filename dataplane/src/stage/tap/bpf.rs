//! Classic BPF: which frames a [`Tap`](super::Tap) copies.
//!
//! A program comes from outside, so it is checked before it runs ([`Program::new`]), by the rules of the kernel's own check: then
//! it can't loop, read beyond the frame or divide by zero. It runs on the packet path, hence decoded once and interpreted here.
//! What each instruction means: Steven McCanne and Van Jacobson, "The BSD Packet Filter", 1993; bpf(4); `struct sock_filter`.

use serde::{Deserialize, Serialize};

/// An instruction as compilers make it: the kernel's `struct sock_filter`. Written as `[code, jt, jf, k]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "(u16, u8, u8, u32)", into = "(u16, u8, u8, u32)")]
pub struct Instruction {
    /// What to do.
    pub code: u16,
    /// How many instructions to skip if a condition holds.
    pub jt: u8,
    /// How many to skip if not.
    pub jf: u8,
    /// The operand.
    pub k: u32,
}

/// A filter that may run.
///
/// ```
/// use l2relay::stage::tap::bpf::{Instruction, Program};
///
/// // What `tcpdump -dd ip` prints: the Ethernet type, compared with 0x0800.
/// let code = [(0x28, 0, 0, 12), (0x15, 0, 1, 0x800), (0x06, 0, 0, 262_144), (0x06, 0, 0, 0)];
/// let ip = Program::new(&code.map(Instruction::from))?;
/// let mut frame = [0; 60];
/// assert_eq!(ip.run(&frame, 60), 0);
/// frame[12] = 8;
/// assert_eq!(ip.run(&frame, 60), 262_144);
/// # Ok::<(), l2relay::stage::tap::bpf::Invalid>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    code: Box<[Instruction]>,
    operations: Box<[Operation]>,
}

/// Why a program may not run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// It has no instruction, or more than [`Program::MAX`].
    #[error("a filter has 1 to {max} instructions, not {0}", max = Program::MAX)]
    Length(usize),
    /// An instruction, counted from 0, is none, or does what it must not.
    #[error("instruction {0} of the filter: {1}")]
    Instruction(usize, &'static str),
}

/// An instruction, decoded. Jumps hold the index they lead to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    LoadWord(u32),
    LoadHalf(u32),
    LoadByte(u32),
    LoadWordAtX(u32),
    LoadHalfAtX(u32),
    LoadByteAtX(u32),
    LoadLength,
    LoadConstant(u32),
    LoadMemory(u8),
    LoadXLength,
    LoadXConstant(u32),
    LoadXMemory(u8),
    /// Four times the lower half of a byte: the length of an IPv4 header.
    LoadXHeaderLength(u32),
    Store(u8),
    StoreX(u8),
    Arithmetic(Arithmetic, u32),
    ArithmeticX(Arithmetic),
    Negate,
    Jump(u16),
    Branch(Condition, u32, u16, u16),
    BranchX(Condition, u16, u16),
    CopyToX,
    CopyFromX,
    Return(u32),
    ReturnA,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arithmetic {
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
    Or,
    And,
    ExclusiveOr,
    ShiftLeft,
    ShiftRight,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Condition {
    Equal,
    Greater,
    GreaterOrEqual,
    AnyBit,
}

/// Words of memory that a program has.
const MEMORY: usize = 16;

impl Program {
    /// Most instructions of a program: the kernel's `BPF_MAXINSNS`.
    pub const MAX: usize = 4096;

    /// Checks a program: every instruction is known, jumps lead forward and stay inside, memory is inside its 16 words, nothing is
    /// divided by a constant 0, and the last instruction returns.
    ///
    /// # Errors
    /// The first instruction that breaks a rule.
    pub fn new(code: &[Instruction]) -> Result<Self, Invalid> {
        if code.is_empty() || code.len() > Self::MAX {
            return Err(Invalid::Length(code.len()));
        }
        let operations: Vec<Operation> = code
            .iter()
            .enumerate()
            .map(|(at, instruction)| {
                Operation::decode(*instruction, at, code.len())
                    .map_err(|why| Invalid::Instruction(at, why))
            })
            .collect::<Result<_, _>>()?;
        match operations.last() {
            Some(Operation::Return(_) | Operation::ReturnA) => Ok(Self {
                code: code.into(),
                operations: operations.into(),
            }),
            _ => Err(Invalid::Instruction(
                code.len() - 1,
                "the last one must return",
            )),
        }
    }

    /// What it was made of.
    pub fn code(&self) -> &[Instruction] {
        &self.code
    }

    /// How many bytes of a frame to keep; 0: none, it does not match. `frame` may be the beginning of one that has `len` bytes.
    pub fn run(&self, frame: &[u8], len: usize) -> u32 {
        let (mut a, mut x, mut memory) = (0_u32, 0_u32, [0_u32; MEMORY]);
        let mut next = 0;
        // Jumps lead forward, so each instruction runs once at most. A load from beyond the frame ends the program: no match.
        while let Some(operation) = self.operations.get(next) {
            next += 1;
            match *operation {
                Operation::LoadWord(k) => match word(frame, k as usize) {
                    Some(value) => a = value,
                    None => return 0,
                },
                Operation::LoadHalf(k) => match half(frame, k as usize) {
                    Some(value) => a = value,
                    None => return 0,
                },
                Operation::LoadByte(k) => match frame.get(k as usize) {
                    Some(byte) => a = u32::from(*byte),
                    None => return 0,
                },
                Operation::LoadWordAtX(k) => match word(frame, x as usize + k as usize) {
                    Some(value) => a = value,
                    None => return 0,
                },
                Operation::LoadHalfAtX(k) => match half(frame, x as usize + k as usize) {
                    Some(value) => a = value,
                    None => return 0,
                },
                Operation::LoadByteAtX(k) => match frame.get(x as usize + k as usize) {
                    Some(byte) => a = u32::from(*byte),
                    None => return 0,
                },
                Operation::LoadXHeaderLength(k) => match frame.get(k as usize) {
                    Some(byte) => x = u32::from(byte & 0x0f) * 4,
                    None => return 0,
                },
                Operation::LoadLength => a = len as u32,
                Operation::LoadConstant(k) => a = k,
                Operation::LoadMemory(at) => a = memory[usize::from(at) % MEMORY],
                Operation::LoadXLength => x = len as u32,
                Operation::LoadXConstant(k) => x = k,
                Operation::LoadXMemory(at) => x = memory[usize::from(at) % MEMORY],
                Operation::Store(at) => memory[usize::from(at) % MEMORY] = a,
                Operation::StoreX(at) => memory[usize::from(at) % MEMORY] = x,
                Operation::Arithmetic(what, k) => match what.of(a, k) {
                    Some(value) => a = value,
                    None => return 0,
                },
                Operation::ArithmeticX(what) => match what.of(a, x) {
                    Some(value) => a = value,
                    None => return 0,
                },
                Operation::Negate => a = a.wrapping_neg(),
                Operation::Jump(to) => next = usize::from(to),
                Operation::Branch(condition, k, yes, no) => {
                    next = usize::from(if condition.of(a, k) { yes } else { no });
                }
                Operation::BranchX(condition, yes, no) => {
                    next = usize::from(if condition.of(a, x) { yes } else { no });
                }
                Operation::CopyToX => x = a,
                Operation::CopyFromX => a = x,
                Operation::Return(k) => return k,
                Operation::ReturnA => return a,
            }
        }
        0
    }
}

#[inline]
fn word(frame: &[u8], at: usize) -> Option<u32> {
    let bytes = frame.get(at..at + 4)?;
    Some(u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
}

#[inline]
fn half(frame: &[u8], at: usize) -> Option<u32> {
    let bytes = frame.get(at..at + 2)?;
    Some(u32::from(u16::from_be_bytes([bytes[0], bytes[1]])))
}

impl Arithmetic {
    /// `None`: divided by zero, which ends the program.
    #[inline]
    fn of(self, a: u32, by: u32) -> Option<u32> {
        Some(match self {
            Self::Add => a.wrapping_add(by),
            Self::Subtract => a.wrapping_sub(by),
            Self::Multiply => a.wrapping_mul(by),
            Self::Divide => return a.checked_div(by),
            Self::Remainder => return a.checked_rem(by),
            Self::Or => a | by,
            Self::And => a & by,
            Self::ExclusiveOr => a ^ by,
            Self::ShiftLeft => a.checked_shl(by).unwrap_or(0),
            Self::ShiftRight => a.checked_shr(by).unwrap_or(0),
        })
    }
}

impl Condition {
    #[inline]
    fn of(self, a: u32, with: u32) -> bool {
        match self {
            Self::Equal => a == with,
            Self::Greater => a > with,
            Self::GreaterOrEqual => a >= with,
            Self::AnyBit => a & with != 0,
        }
    }
}

impl Operation {
    /// Decodes the instruction at index `at` of `count`. The codes are those of `include/uapi/linux/bpf_common.h`; what is refused is what
    /// `bpf_check_classic` refuses (`net/core/filter.c`).
    fn decode(
        Instruction { code, jt, jf, k }: Instruction,
        at: usize,
        count: usize,
    ) -> Result<Self, &'static str> {
        let memory = || match u8::try_from(k) {
            Ok(word) if usize::from(word) < MEMORY => Ok(word),
            _ => Err("there are 16 words of memory"),
        };
        let target = |skip: u32| match (at as u64 + 1).saturating_add(skip.into()) {
            // Below 4096, so it fits.
            to if to < count as u64 => Ok(to as u16),
            _ => Err("it jumps beyond the end, or back (as protochain does)"),
        };
        Ok(match code {
            // LD
            0x20 => Self::LoadWord(k),
            0x28 => Self::LoadHalf(k),
            0x30 => Self::LoadByte(k),
            0x40 => Self::LoadWordAtX(k),
            0x48 => Self::LoadHalfAtX(k),
            0x50 => Self::LoadByteAtX(k),
            0x80 => Self::LoadLength,
            0x00 => Self::LoadConstant(k),
            0x60 => Self::LoadMemory(memory()?),
            // LDX
            0x81 => Self::LoadXLength,
            0x01 => Self::LoadXConstant(k),
            0x61 => Self::LoadXMemory(memory()?),
            0xb1 => Self::LoadXHeaderLength(k),
            // ST, STX
            0x02 => Self::Store(memory()?),
            0x03 => Self::StoreX(memory()?),
            // ALU
            0x84 => Self::Negate,
            0x04 | 0x14 | 0x24 | 0x34 | 0x44 | 0x54 | 0x64 | 0x74 | 0x94 | 0xa4 => {
                let what = Arithmetic::decode(code);
                match what {
                    Arithmetic::Divide | Arithmetic::Remainder if k == 0 => {
                        return Err("it divides by 0");
                    }
                    Arithmetic::ShiftLeft | Arithmetic::ShiftRight if k >= 32 => {
                        return Err("it shifts by more than 31");
                    }
                    _ => Self::Arithmetic(what, k),
                }
            }
            0x0c | 0x1c | 0x2c | 0x3c | 0x4c | 0x5c | 0x6c | 0x7c | 0x9c | 0xac => {
                Self::ArithmeticX(Arithmetic::decode(code))
            }
            // JMP
            0x05 => Self::Jump(target(k)?),
            0x15 | 0x25 | 0x35 | 0x45 => Self::Branch(
                Condition::decode(code),
                k,
                target(jt.into())?,
                target(jf.into())?,
            ),
            0x1d | 0x2d | 0x3d | 0x4d => Self::BranchX(
                Condition::decode(code),
                target(jt.into())?,
                target(jf.into())?,
            ),
            // RET, MISC
            0x06 => Self::Return(k),
            0x16 => Self::ReturnA,
            0x07 => Self::CopyToX,
            0x87 => Self::CopyFromX,
            _ => return Err("there is no such instruction"),
        })
    }
}

impl Arithmetic {
    fn decode(code: u16) -> Self {
        match code & 0xf0 {
            0x00 => Self::Add,
            0x10 => Self::Subtract,
            0x20 => Self::Multiply,
            0x30 => Self::Divide,
            0x40 => Self::Or,
            0x50 => Self::And,
            0x60 => Self::ShiftLeft,
            0x70 => Self::ShiftRight,
            0x90 => Self::Remainder,
            _ => Self::ExclusiveOr,
        }
    }
}

impl Condition {
    fn decode(code: u16) -> Self {
        match code & 0xf0 {
            0x10 => Self::Equal,
            0x20 => Self::Greater,
            0x30 => Self::GreaterOrEqual,
            _ => Self::AnyBit,
        }
    }
}

impl From<(u16, u8, u8, u32)> for Instruction {
    fn from((code, jt, jf, k): (u16, u8, u8, u32)) -> Self {
        Self { code, jt, jf, k }
    }
}

impl From<Instruction> for (u16, u8, u8, u32) {
    fn from(Instruction { code, jt, jf, k }: Instruction) -> Self {
        (code, jt, jf, k)
    }
}

#[cfg(all(test, feature = "program"))]
mod tests {
    use super::*;
    use proptest::{collection::vec, prelude::*, sample::select};

    fn program(code: &[(u16, u8, u8, u32)]) -> Result<Program, Invalid> {
        let code: Vec<Instruction> = code.iter().copied().map(Instruction::from).collect();
        Program::new(&code)
    }

    #[test]
    fn what_breaks_a_rule_is_refused() {
        let (ret, load) = ((0x06, 0, 0, 1), (0x00, 0, 0, 7));
        let refused: [&[(u16, u8, u8, u32)]; 14] = [
            &[],
            &[load],                        // does not return
            &[(0x05, 0, 0, 1), ret],        // jumps beyond the end
            &[(0x05, 0, 0, u32::MAX), ret], // jumps back
            &[(0x15, 1, 0, 0), ret],        // a branch beyond the end
            &[(0x15, 0, 1, 0), ret],
            &[(0x60, 0, 0, 16), ret], // memory it does not have
            &[(0x02, 0, 0, 16), ret],
            &[(0x03, 0, 0, u32::MAX), ret],
            &[(0x34, 0, 0, 0), ret], // divides by 0
            &[(0x94, 0, 0, 0), ret],
            &[(0x64, 0, 0, 32), ret],  // shifts too far
            &[(0xffff, 0, 0, 0), ret], // none of the instructions
            &[(0x0e, 0, 0, 0), ret],
        ];
        for code in refused {
            assert!(program(code).is_err(), "{code:?}");
        }
        let longest = vec![load; Program::MAX - 1];
        assert!(program(&[&longest[..], &[ret]].concat()).is_ok());
        assert_eq!(
            program(&[&longest[..], &[load, ret]].concat()),
            Err(Invalid::Length(Program::MAX + 1))
        );
    }

    #[test]
    fn a_frame_cut_short_is_told_from_a_short_one() {
        // ld len; ret a
        let length = program(&[(0x80, 0, 0, 0), (0x16, 0, 0, 0)]).unwrap();
        assert_eq!(length.run(&[0; 14], 1500), 1500);
        // Beyond the frame: no match, whatever follows.
        for load in [0x20, 0x28, 0x30, 0x40, 0x48, 0x50, 0xb1] {
            for at in [14, 1000, u32::MAX - 1, u32::MAX] {
                let beyond = program(&[(load, 0, 0, at), (0x06, 0, 0, 1)]).unwrap();
                assert_eq!(beyond.run(&[0; 14], 14), 0);
            }
        }
        let half = program(&[(0x28, 0, 0, 12), (0x06, 0, 0, 1)]).unwrap();
        assert_eq!((half.run(&[0; 14], 14), half.run(&[0; 13], 13)), (1, 0));
    }

    #[test]
    fn an_instruction_is_four_numbers() {
        let instruction = Instruction::from((0x28, 1, 2, 12));
        let text = serde_json::to_string(&instruction).unwrap();
        assert_eq!(text, "[40,1,2,12]");
        assert_eq!(
            serde_json::from_str::<Instruction>(&text).unwrap(),
            instruction
        );
    }

    /// Every code that there is.
    fn known() -> Vec<u16> {
        (0..0x100)
            .filter(|&code| {
                let instruction = Instruction::from((code, 0, 0, 1));
                Operation::decode(instruction, 0, 4).is_ok()
            })
            .collect()
    }

    fn instructions() -> impl Strategy<Value = Vec<Instruction>> {
        // Operands that lie near the borders more often than not.
        let operand = prop_oneof![0..20_u32, 0..80_u32, any::<u32>(), Just(u32::MAX)];
        let one = (select(known()), 0..6_u8, 0..6_u8, operand);
        (
            vec(one, 0..24),
            prop_oneof![Just((0x06, 0, 0, 9)), Just((0x16, 0, 0, 0))],
        )
            .prop_map(|(mut code, last)| {
                code.push(last);
                // libpcap does not clear the memory of a program, and its compiler needs no more: here every word is stored first.
                let stores = (0..MEMORY as u32).map(|word| (0x02, 0, 0, word));
                stores.chain(code).map(Instruction::from).collect()
            })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4096))]

        #[test]
        fn no_program_that_is_accepted_panics(
            code in vec(any::<(u16, u8, u8, u32)>(), 0..40),
            frame in vec(any::<u8>(), 0..80),
        ) {
            if let Ok(program) = program(&code) {
                program.run(&frame, frame.len());
            }
        }

        #[test]
        fn it_runs_as_libpcap_runs_it(code in instructions(), frame in vec(any::<u8>(), 0..80)) {
            // What we accept libpcap accepts too, and makes the same of.
            if let Ok(program) = Program::new(&code) {
                let reference = crate::sys::pcap::reference(&code, &frame);
                prop_assert_eq!(reference, Some(program.run(&frame, frame.len())), "{:?}", code);
            }
        }
    }

    /// Expressions of every kind that pcap-filter(7) describes for Ethernet.
    const EXPRESSIONS: &[&str] = &[
        "",
        "ip",
        "ip6",
        "arp or rarp",
        "tcp",
        "udp",
        "icmp",
        "icmp6",
        "sctp",
        "ether host 02:00:00:00:00:01",
        "ether src 02:00:00:00:00:01 or ether dst 02:00:00:00:00:02",
        "ether multicast",
        "broadcast",
        "ether proto 0x88cc",
        "host 10.0.0.1",
        "src host 10.0.0.1 and dst host 10.0.0.2",
        "net 10.0.0.0/8",
        "ip6 host fd00::1",
        "net fd00::/8",
        "port 53",
        "tcp port 80",
        "tcp dst port 443 and src net 10.0.0.0/8",
        "udp portrange 4000-5000",
        "port 4789",
        "portrange 0-32767",
        "tcp[tcpflags] & (tcp-syn|tcp-fin) != 0",
        "tcp[13] & 0x10 != 0 and tcp[2:2] > 1000",
        "ip[0] & 0xf != 5",
        "ip[6:2] & 0x1fff != 0",
        "(ip[2:2] - ((ip[0] & 0xf) << 2)) % 7 = 3",
        "ip[8] * 3 / 2 > 90 or ip[4:2] ^ 0x55 > 1000",
        "ether[100] = 0",
        "ether[ether[14] & 0x1f] > 0x20",
        "len > 100",
        "greater 200",
        "less 64",
        "vlan",
        "vlan 7",
        "vlan and ip",
        "vlan and vlan and tcp",
        "vlan and udp port 53",
        "not (tcp or udp)",
        "ip proto 47",
        "ip6 proto 17",
        "mpls",
        "mpls 100 and host 10.0.0.1",
        "pppoes",
        "geneve",
        "llc",
        "stp",
        "tcp and not port 22 and (net 10.0.0.0/8 or net 192.168.0.0/16 or ip6)",
    ];

    type Compiled = (&'static str, Vec<Instruction>, Program);

    static COMPILED: std::sync::LazyLock<Vec<Compiled>> = std::sync::LazyLock::new(|| {
        let compiled = EXPRESSIONS.iter().map(|expression| {
            let code = crate::sys::pcap::compile(expression).expect("it compiles");
            let program = Program::new(&code).expect("it is valid");
            (*expression, code, program)
        });
        compiled.collect()
    });

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        #[test]
        fn compiled_filters_match_what_they_match_in_libpcap(
            sample in crate::wire::sample::frames(0..400),
            cut in 0..120_usize,
            turned in vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        ) {
            let mut frame = sample.bytes;
            frame.truncate(frame.len().saturating_sub(cut).max(1));
            for (at, byte) in turned {
                let at = at.index(frame.len());
                frame[at] = byte;
            }
            for (expression, code, program) in COMPILED.iter() {
                let ours = program.run(&frame, frame.len());
                let reference = crate::sys::pcap::reference(code, &frame);
                prop_assert_eq!(reference, Some(ours), "{} of {:02x?}", expression, frame);
            }
        }
    }

    #[test]
    fn a_loop_is_refused() {
        let code = crate::sys::pcap::compile("ip6 protochain 6").unwrap();
        let error = Program::new(&code).unwrap_err().to_string();
        assert!(error.contains("protochain"), "{error}");
    }

    #[test]
    fn what_does_not_compile_says_why() {
        for expression in [
            "tcp prt 80",
            "host",
            "(((",
            "port 70000",
            "ip broadcast",
            "\0",
        ] {
            let error = crate::sys::pcap::compile(expression).unwrap_err();
            assert!(!error.is_empty(), "{expression}");
        }
    }

    #[test]
    fn most_random_programs_are_accepted() {
        use proptest::{strategy::ValueTree, test_runner::TestRunner};
        let mut runner = TestRunner::deterministic();
        let accepted = (0..1000).filter(|_| {
            let code = instructions().new_tree(&mut runner).unwrap().current();
            Program::new(&code).is_ok()
        });
        let accepted = accepted.count();
        assert!(
            accepted > 100,
            "only {accepted} of 1000 programs were tried at all"
        );
    }
}
