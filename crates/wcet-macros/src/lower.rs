//! From syntax tree to control-flow graph.
//!
//! Expressions are lowered in evaluation order. Each adds its cost to the current block; jumps end
//! the block. Unknown syntax is an error with a remedy, never a cost of zero.

mod call;
mod control;
mod expr;

use crate::attributes;
use crate::cost::Class;
use crate::flow::{Call, Callee, Flow, Kind, Segment};
use proc_macro2::Span;
use syn::spanned::Spanned;
use syn::{Block, Error, Expr, ExprAwait, Ident, Pat, Stmt};

/// Meaning of a name in the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Local {
    /// A closure whose code is known.
    Closure(usize),
    /// Anything else.
    Value,
}

/// Targets of `break` and `continue`.
struct Target {
    label: Option<Ident>,
    /// The loop's number; none for a labelled block.
    number: Option<usize>,
    /// Target of `continue`, and kind of the edge.
    again: Option<(usize, Kind)>,
    /// Target of `break`.
    done: usize,
    /// Whether its condition is being lowered.
    in_head: bool,
}

/// State shared by all bodies of one item.
#[derive(Default)]
pub(crate) struct Item {
    pub(crate) name: String,
    /// The task context, for tasks.
    pub(crate) context: Option<Ident>,
    pub(crate) callees: Vec<Callee>,
    pub(crate) errors: Vec<Error>,
    /// Functions and imports inside the body; modules outside it cannot look them up.
    pub(crate) inner_names: Vec<String>,
}

/// The lowering of one body.
struct Lowering<'a> {
    item: &'a mut Item,
    flow: Flow,
    current: usize,
    /// Targets of `return` and `?`; the innermost body's is last.
    exits: Vec<usize>,
    targets: Vec<Target>,
    locals: Vec<(String, Local)>,
    /// Inside a closure, where awaits are refused.
    closure: bool,
}

/// The graph of a function's body.
pub(crate) fn body(item: &mut Item, parameters: &[String], block: &Block, span: Span) -> Flow {
    let locals = parameters.iter().map(|name| (name.clone(), Local::Value)).collect();
    let segments = segments_of(block);
    let mut lowering = Lowering::new(item, locals, span, false);
    lowering.flow.segments.extend(segments.into_iter().map(|span| Segment {
        entry: usize::MAX,
        span,
        after: String::new(),
        wait: false,
    }));
    lowering.block(block);
    lowering.finish()
}

/// The graph of a function with a declared time.
pub(crate) fn declared(ns: u64, span: Span) -> Flow {
    let mut flow = Flow::default();
    let entry = flow.block();
    flow.blocks[entry].declared_ns = ns;
    flow.blocks[entry].span = Some(span);
    flow.segments.push(Segment { entry, span, after: String::new(), wait: false });
    flow
}

pub(crate) use expr::stripped as peeled;

/// The spans of the numbered awaits, in order.
fn segments_of(block: &Block) -> Vec<Span> {
    struct Awaits(Vec<Span>);
    impl<'ast> syn::visit::Visit<'ast> for Awaits {
        fn visit_expr_await(&mut self, expression: &'ast ExprAwait) {
            syn::visit::visit_expr_await(self, expression);
            if attributes::segment(&expression.attrs).is_some() {
                self.0.push(expression.await_token.span);
            }
        }
        fn visit_item(&mut self, _: &'ast syn::Item) {}
    }
    let mut awaits = Awaits(Vec::new());
    syn::visit::Visit::visit_block(&mut awaits, block);
    awaits.0
}

impl<'a> Lowering<'a> {
    fn new(item: &'a mut Item, locals: Vec<(String, Local)>, span: Span, closure: bool) -> Self {
        let mut flow = Flow::default();
        let start = flow.block();
        let exit = flow.block();
        flow.segments.push(Segment { entry: start, span, after: String::new(), wait: false });
        if !closure && item.context.is_some() {
            flow.charge(start, Class::Segment, 1, span);
        }
        Lowering {
            item,
            flow,
            current: start,
            exits: vec![exit],
            targets: Vec::new(),
            locals,
            closure,
        }
    }

    /// Ends the body and checks that its loops end or yield.
    fn finish(mut self) -> Flow {
        self.leave(self.exits[0], Kind::Next);
        for number in 0..self.flow.segments.len() {
            // An unreachable or refused await.
            if self.flow.segments[number].entry == usize::MAX {
                self.flow.segments[number].entry = self.flow.block();
            }
        }
        self.flow.prune();
        for number in 0..self.flow.loops.len() {
            self.check_loop(number);
        }
        self.flow
    }

    fn check_loop(&mut self, number: usize) {
        let around = &self.flow.loops[number];
        if around.bound.is_some() {
            return;
        }
        let Some(way) = self.flow.round_without_yield(number) else {
            return;
        };
        let span = around.span;
        let remedy = match &self.item.context {
            Some(card) => format!(
                "yield on every path (`{card}.yield_now().await`), or state how often it runs at \
                 most: `#[bound(n)]` before it"
            ),
            None => "state how often it runs at most: `#[bound(n)]` before it".into(),
        };
        let message = if self.flow.yields_in(number) {
            let last = way.into_iter().find_map(|block| self.flow.blocks[block].span);
            let line = line(last);
            let way = line
                .map_or_else(String::new, |line| format!(" (not on the one through line {line})"));
            format!("this loop yields on some paths but not on all{way}: {remedy}")
        } else if self.item.context.is_some() && !self.closure {
            format!("this loop neither yields nor has a bound: {remedy}")
        } else {
            format!("this loop has no bound: {remedy}")
        };
        self.error(span, message);
    }

    fn error(&mut self, span: Span, message: impl std::fmt::Display) {
        self.item.errors.push(Error::new(span, message));
    }

    // ------------------------------------------------------------ blocks

    fn charge(&mut self, class: Class, count: u32, span: Span) {
        self.flow.charge(self.current, class, count, span);
    }

    fn charge_call(&mut self, call: Call, span: Span) {
        self.charge(Class::Call, 1, span);
        self.flow.blocks[self.current].calls.push(call);
    }

    fn declare(&mut self, ns: u64, span: Span) {
        let block = &mut self.flow.blocks[self.current];
        block.declared_ns = block.declared_ns.saturating_add(ns);
        block.span.get_or_insert(span);
    }

    /// Continues in `block`.
    fn at(&mut self, block: usize) {
        self.current = block;
    }

    /// Jumps; the code after it is unreachable unless something else leads there.
    fn leave(&mut self, to: usize, kind: Kind) {
        self.flow.edge(self.current, to, kind);
        self.current = self.flow.block();
    }

    /// Ends the block and continues in a new one.
    fn split(&mut self) -> usize {
        let next = self.flow.block();
        self.flow.edge(self.current, next, Kind::Next);
        std::mem::replace(&mut self.current, next)
    }

    // ------------------------------------------------------------ statements

    fn block(&mut self, block: &Block) {
        let scope = self.locals.len();
        let names = self.item.inner_names.len();
        for statement in &block.stmts {
            if let Stmt::Item(item) = statement {
                self.inner_item(item);
            }
        }
        for statement in &block.stmts {
            self.statement(statement);
        }
        self.item.inner_names.truncate(names);
        self.locals.truncate(scope);
    }

    fn statement(&mut self, statement: &Stmt) {
        match statement {
            Stmt::Item(_) => {}
            Stmt::Local(local) => {
                let span = local.span();
                let closures = self.flow.closures.len();
                match self.declared_by(&local.attrs) {
                    Some(ns) => {
                        if let Some(init) = &local.init {
                            self.opaque(&init.expr, ns, span);
                        }
                    }
                    None => {
                        if let Some(init) = &local.init {
                            self.expression(&init.expr);
                        }
                    }
                }
                if let Some((_, otherwise)) = local.init.as_ref().and_then(|i| i.diverge.as_ref()) {
                    let tests = tests(&local.pat).max(1);
                    self.charge(Class::Branch, tests, span);
                    let test = self.split();
                    let matched = self.current;
                    let other = self.flow.block();
                    self.flow.edge(test, other, Kind::Next);
                    self.at(other);
                    self.expression(otherwise);
                    self.leave(self.exits[0], Kind::Next);
                    self.at(matched);
                }
                if local.init.is_some() {
                    self.charge(Class::Bitwise, 1, span);
                }
                let value = local.init.as_ref().map(|init| &*init.expr);
                let known = matches!(value, Some(Expr::Closure(_)));
                self.bind(&local.pat);
                if let (Pat::Ident(name), true) = (&local.pat, known)
                    && self.flow.closures.len() > closures
                {
                    let closure = Local::Closure(self.flow.closures.len() - 1);
                    self.locals.push((name.ident.to_string(), closure));
                }
            }
            Stmt::Expr(expression, _) => {
                match self.declared_by(attributes::of_statement(expression)) {
                    Some(ns) => self.opaque(expression, ns, expression.span()),
                    None => self.expression(expression),
                }
            }
            Stmt::Macro(invocation) => match self.declared_by(&invocation.attrs) {
                Some(ns) => self.declare(ns, invocation.span()),
                None => self.invocation(&invocation.mac),
            },
        }
    }

    /// The time from a `#[wcet]` attribute, if present.
    fn declared_by(&mut self, attributes: &[syn::Attribute]) -> Option<u64> {
        attributes::declared(attributes).unwrap_or_else(|error| {
            self.item.errors.push(error);
            // The wrong attribute is reported already; do not also report its code.
            Some(1)
        })
    }

    fn inner_item(&mut self, item: &syn::Item) {
        match item {
            syn::Item::Fn(inner) => self.item.inner_names.push(inner.sig.ident.to_string()),
            syn::Item::Use(inner) => imported(&inner.tree, &mut self.item.inner_names),
            syn::Item::Macro(inner) => self.error(
                inner.span(),
                "a macro inside the body hides its cost: put it before the function",
            ),
            _ => {}
        }
    }

    // ------------------------------------------------------------ names

    /// Names in a pattern shadow earlier ones.
    fn bind(&mut self, pattern: &Pat) {
        let mut names = Vec::new();
        names_in(pattern, &mut names);
        for name in names {
            if self.item.context.as_ref().is_some_and(|context| name == *context) {
                let message = format!(
                    "`{name}` is the task context here, which keeps the ticket up to date: \
                     give this one another name"
                );
                self.error(name.span(), message);
            }
            self.locals.push((name.to_string(), Local::Value));
        }
    }

    fn local(&self, name: &str) -> Option<Local> {
        self.locals.iter().rev().find(|(known, _)| known == name).map(|(_, local)| *local)
    }

    fn is_context(&self, expression: &Expr) -> bool {
        match expression {
            Expr::Path(path) => {
                self.item.context.as_ref().is_some_and(|context| path.path.is_ident(context))
            }
            Expr::Paren(inner) => self.is_context(&inner.expr),
            Expr::Group(inner) => self.is_context(&inner.expr),
            Expr::Reference(inner) => self.is_context(&inner.expr),
            _ => false,
        }
    }
}

/// The line in the file, while the compiler runs this macro.
pub(crate) fn line(span: Option<Span>) -> Option<u32> {
    if !proc_macro::is_available() {
        return None;
    }
    span.and_then(|span| u32::try_from(span.unwrap().start().line()).ok())
}

fn imported(tree: &syn::UseTree, names: &mut Vec<String>) {
    match tree {
        syn::UseTree::Path(path) => imported(&path.tree, names),
        syn::UseTree::Name(name) => names.push(name.ident.to_string()),
        syn::UseTree::Rename(name) => names.push(name.rename.to_string()),
        syn::UseTree::Glob(_) => {}
        syn::UseTree::Group(group) => {
            group.items.iter().for_each(|tree| imported(tree, names));
        }
    }
}

/// The names that a pattern binds.
pub(crate) fn names_in(pattern: &Pat, names: &mut Vec<Ident>) {
    struct Names<'a>(&'a mut Vec<Ident>);
    impl<'ast> syn::visit::Visit<'ast> for Names<'_> {
        fn visit_pat_ident(&mut self, pattern: &'ast syn::PatIdent) {
            self.0.push(pattern.ident.clone());
            syn::visit::visit_pat_ident(self, pattern);
        }
    }
    syn::visit::Visit::visit_pat(&mut Names(names), pattern);
}

/// Most tests that a pattern needs.
fn tests(pattern: &Pat) -> u32 {
    match pattern {
        Pat::Lit(_) | Pat::Range(_) | Pat::Const(_) | Pat::Path(_) => 1,
        Pat::Ident(inner) => match &inner.subpat {
            Some((_, pattern)) => tests(pattern),
            // A constant or a variant looks like a name.
            None => u32::from(inner.ident.to_string().starts_with(char::is_uppercase)),
        },
        Pat::Or(inner) => inner.cases.iter().map(tests).sum(),
        Pat::Paren(inner) => tests(&inner.pat),
        Pat::Reference(inner) => tests(&inner.pat),
        Pat::Slice(inner) => 1 + inner.elems.iter().map(tests).sum::<u32>(),
        Pat::Struct(inner) => 1 + inner.fields.iter().map(|field| tests(&field.pat)).sum::<u32>(),
        Pat::Tuple(inner) => inner.elems.iter().map(tests).sum(),
        Pat::TupleStruct(inner) => 1 + inner.elems.iter().map(tests).sum::<u32>(),
        Pat::Type(inner) => tests(&inner.pat),
        Pat::Wild(_) | Pat::Rest(_) => 0,
        _ => 1,
    }
}
