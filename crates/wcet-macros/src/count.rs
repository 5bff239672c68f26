//! Rounds of a `for` loop whose head has only literals.

use syn::{BinOp, Expr, ExprLit, ExprRange, Lit, RangeLimits, UnOp};

/// The value of arithmetic on integer literals.
pub(crate) fn constant(expression: &Expr) -> Option<i128> {
    match expression {
        Expr::Lit(ExprLit { lit: Lit::Int(number), .. }) => number.base10_parse().ok(),
        Expr::Lit(ExprLit { lit: Lit::Byte(number), .. }) => Some(number.value().into()),
        Expr::Paren(inner) => constant(&inner.expr),
        Expr::Group(inner) => constant(&inner.expr),
        Expr::Unary(inner) if matches!(inner.op, UnOp::Neg(_)) => {
            constant(&inner.expr)?.checked_neg()
        }
        Expr::Binary(inner) => {
            let (left, right) = (constant(&inner.left)?, constant(&inner.right)?);
            let shift = u32::try_from(right).ok().filter(|shift| *shift < 64);
            match inner.op {
                BinOp::Add(_) => left.checked_add(right),
                BinOp::Sub(_) => left.checked_sub(right),
                BinOp::Mul(_) => left.checked_mul(right),
                BinOp::Div(_) => left.checked_div(right),
                BinOp::Rem(_) => left.checked_rem(right),
                BinOp::Shl(_) if left.unsigned_abs() < 1 << 63 => left.checked_shl(shift?),
                BinOp::Shr(_) => left.checked_shr(shift?),
                _ => None,
            }
        }
        _ => None,
    }
}

/// Number of items that a loop's head yields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rounds {
    /// Always this many.
    Exactly(u64),
    /// At most this many.
    AtMost(u64),
}

impl Rounds {
    pub(crate) fn most(self) -> u64 {
        match self {
            Rounds::Exactly(rounds) | Rounds::AtMost(rounds) => rounds,
        }
    }

    fn map(self, change: impl Fn(u64) -> u64) -> Self {
        match self {
            Rounds::Exactly(rounds) => Rounds::Exactly(change(rounds)),
            Rounds::AtMost(rounds) => Rounds::AtMost(change(rounds)),
        }
    }
}

/// The number of rounds of a `for` loop, if its head tells it.
pub(crate) fn rounds(head: &Expr) -> Option<Rounds> {
    match head {
        Expr::Paren(inner) => rounds(&inner.expr),
        Expr::Group(inner) => rounds(&inner.expr),
        Expr::Reference(inner) => match peel(&inner.expr) {
            Expr::Array(_) | Expr::Repeat(_) => rounds(&inner.expr),
            _ => None,
        },
        Expr::Array(inner) => Some(Rounds::Exactly(inner.elems.len() as u64)),
        Expr::Repeat(inner) => u64::try_from(constant(&inner.len)?).ok().map(Rounds::Exactly),
        Expr::Range(inner) => range(inner).map(Rounds::Exactly),
        Expr::MethodCall(inner) => {
            let argument = inner.args.first();
            let number = || u64::try_from(constant(argument?)?).ok();
            match (inner.method.to_string().as_str(), inner.args.len()) {
                ("rev" | "enumerate" | "iter" | "iter_mut" | "into_iter" | "copied", 0) => {
                    rounds(&inner.receiver)
                }
                ("step_by", 1) => {
                    let step = number().filter(|step| *step != 0)?;
                    Some(rounds(&inner.receiver)?.map(|rounds| rounds.div_ceil(step)))
                }
                ("skip", 1) => {
                    let skipped = number()?;
                    Some(rounds(&inner.receiver)?.map(|rounds| rounds.saturating_sub(skipped)))
                }
                ("take", 1) => {
                    let most = number()?;
                    Some(match rounds(&inner.receiver) {
                        Some(known) => known.map(|rounds| rounds.min(most)),
                        None => Rounds::AtMost(most),
                    })
                }
                ("zip", 1) => match (rounds(&inner.receiver), rounds(argument?)) {
                    (Some(Rounds::Exactly(left)), Some(Rounds::Exactly(right))) => {
                        Some(Rounds::Exactly(left.min(right)))
                    }
                    (Some(left), Some(right)) => {
                        Some(Rounds::AtMost(left.most().min(right.most())))
                    }
                    (one, other) => one.or(other).map(|known| Rounds::AtMost(known.most())),
                },
                _ => None,
            }
        }
        _ => None,
    }
}

fn peel(expression: &Expr) -> &Expr {
    match expression {
        Expr::Paren(inner) => peel(&inner.expr),
        Expr::Group(inner) => peel(&inner.expr),
        other => other,
    }
}

fn range(range: &ExprRange) -> Option<u64> {
    let (start, end) = (constant(range.start.as_ref()?)?, constant(range.end.as_ref()?)?);
    let end = match range.limits {
        RangeLimits::HalfOpen(_) => end,
        RangeLimits::Closed(_) => end.checked_add(1)?,
    };
    u64::try_from(end.checked_sub(start)?.max(0)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Option<Rounds> {
        rounds(&syn::parse_str(text).unwrap())
    }

    #[test]
    fn literal_heads_are_counted() {
        use Rounds::{AtMost, Exactly};
        let cases = [
            ("0..16", Some(Exactly(16))),
            ("0..=15", Some(Exactly(16))),
            ("-3..3i64", Some(Exactly(6))),
            ("5..2", Some(Exactly(0))),
            ("5..=4", Some(Exactly(0))),
            ("0..4 * (2 + 6) - 1", Some(Exactly(31))),
            ("0..1 << 5", Some(Exactly(32))),
            ("b'a'..=b'z'", Some(Exactly(26))),
            ("(0..10).rev()", Some(Exactly(10))),
            ("(0..10).step_by(3)", Some(Exactly(4))),
            ("(0..10).skip(3).take(20)", Some(Exactly(7))),
            ("[a, b, c]", Some(Exactly(3))),
            ("&[a, b]", Some(Exactly(2))),
            ("[0; 12].iter().enumerate()", Some(Exactly(12))),
            ("packets.iter().take(8)", Some(AtMost(8))),
            ("packets.iter().zip(0..8)", Some(AtMost(8))),
            ("(0..3).zip([1, 2])", Some(Exactly(2))),
            ("0..n", None),
            ("..4", None),
            ("0..", None),
            ("(0..10).step_by(0)", None),
            ("packets", None),
            ("&packets", None),
            ("(0..10).cycle()", None),
            ("(0..10).flat_map(f)", None),
            ("0..1 / 0", None),
            ("[0; N]", None),
        ];
        for (text, wanted) in cases {
            assert_eq!(of(text), wanted, "{text}");
        }
    }
}
