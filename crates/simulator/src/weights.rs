//! The simulated weights: a logprob for every token in every context.
//!
//! A logprob is a pure function of the weight version, the exact ids before the token
//! and the token itself. The same token scored again in another request therefore gets
//! the bit-same number, and one wrong id anywhere before it gives another. The numbers
//! lie in -8 … -0.0001 and look like those of a trained model; they do not sum to one.

/// How likely one token is in one context.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Logprob {
    /// Natural logarithm of the probability, single precision as engines compute it.
    pub value: f32,
    /// 1 for the likeliest token of the vocabulary.
    pub rank: u32,
}

/// Everything before a token, folded into a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Context(u64);

impl Context {
    /// Nothing yet.
    pub fn empty() -> Self {
        Self(0x243f_6a88_85a3_08d3)
    }

    /// The context after these ids.
    pub fn of(ids: &[u32]) -> Self {
        ids.iter().fold(Self::empty(), |context, id| context.then(*id))
    }

    /// The context after one more id.
    #[must_use]
    pub fn then(self, id: u32) -> Self {
        Self(mix(self.0 ^ (u64::from(id) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }

    /// A number for this context under a salt.
    pub(crate) fn key(self, salt: u64) -> u64 {
        mix(self.0 ^ salt)
    }

    /// Chances of the next token under one weight version.
    pub fn distribution(self, version: &str, vocabulary: u32) -> Distribution {
        let seed = mix(self.0 ^ text_seed(version));
        let size = u64::from(vocabulary.max(1));
        let mut stride = mix(seed ^ 1) % size;
        while greatest_common_divisor(stride, size) != 1 {
            stride += 1;
        }
        Distribution { size, stride, offset: mix(seed ^ 2) % size, jitter: unit(mix(seed ^ 3)) }
    }
}

/// Chances of the next token. Ranks are an affine permutation of the ids, so that rank,
/// logprob and top tokens all cost the same whatever the size of the vocabulary.
#[derive(Debug, Clone, Copy)]
pub struct Distribution {
    size: u64,
    stride: u64,
    offset: u64,
    jitter: f64,
}

impl Distribution {
    /// Logprob of one token.
    pub fn of(&self, id: u32) -> Logprob {
        self.at_rank((u64::from(id) % self.size * self.stride + self.offset) % self.size)
    }

    /// The `count` likeliest tokens, likeliest first.
    pub fn top(&self, count: usize) -> Vec<(u32, Logprob)> {
        let back = inverse(self.stride, self.size);
        (0..self.size)
            .take(count)
            .map(|rank| {
                let id = (rank + self.size - self.offset) % self.size * back % self.size;
                (u32::try_from(id).unwrap_or(u32::MAX), self.at_rank(rank))
            })
            .collect()
    }

    /// Ranks are spread so that most tokens are near certain and some are surprising.
    fn at_rank(&self, rank: u64) -> Logprob {
        let share = (rank as f64 + self.jitter) / self.size as f64;
        let value = -(0.0001 * 80_000_f64.powf(share.powf(0.8)));
        Logprob { value: value as f32, rank: u32::try_from(rank + 1).unwrap_or(u32::MAX) }
    }
}

/// A number that differs for different texts.
pub(crate) fn text_seed(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        mix(hash ^ u64::from(byte).wrapping_mul(0x0100_0000_01b3))
    })
}

/// Scrambles all bits.
pub(crate) fn mix(value: u64) -> u64 {
    let mut x = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// A number in `0.0..1.0`.
pub(crate) fn unit(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1_u64 << 53) as f64
}

fn greatest_common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

/// The number that undoes a multiplication by `value` modulo `size` (coprime to it).
fn inverse(value: u64, size: u64) -> u64 {
    let modulus = i128::from(size);
    let (mut old, mut new) = (i128::from(value), modulus);
    let (mut old_factor, mut new_factor) = (1_i128, 0_i128);
    while new != 0 {
        let quotient = old / new;
        (old, new) = (new, old - quotient * new);
        (old_factor, new_factor) = (new_factor, old_factor - quotient * new_factor);
    }
    u64::try_from(old_factor.rem_euclid(modulus)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logprobs_are_a_function_of_version_context_and_token() {
        let here = Context::of(&[5, 6, 7]).distribution("default", 4096).of(9);
        assert_eq!(here, Context::of(&[5, 6]).then(7).distribution("default", 4096).of(9));
        assert_ne!(here, Context::of(&[6, 5, 7]).distribution("default", 4096).of(9));
        assert_ne!(here, Context::of(&[5, 6, 7]).distribution("step-1", 4096).of(9));
        assert_ne!(here, Context::of(&[5, 6, 7]).distribution("default", 4096).of(10));
    }

    #[test]
    fn ranks_order_the_whole_vocabulary() {
        for size in [1, 2, 1000, 4096] {
            let distribution = Context::of(&[1, 2]).distribution("v", size);
            let top = distribution.top(size as usize);
            assert_eq!(top.len(), size as usize);
            for (place, (id, logprob)) in top.iter().enumerate() {
                assert_eq!(*logprob, distribution.of(*id));
                assert_eq!(logprob.rank as usize, place + 1);
                assert!((-8.01..=-0.00009).contains(&logprob.value), "{logprob:?}");
            }
            assert!(top.windows(2).all(|pair| pair[0].1.value >= pair[1].1.value));
        }
    }
}
