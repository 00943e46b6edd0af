use awase_program::{Table, abort, functions};

static STOCK: Table<String, i64> = Table::new("stock");

functions! {
    fn deliver(article: String, pieces: i64) -> i64 {
        let now = STOCK.get(&article).unwrap_or(0) + pieces;
        if now < 0 { abort!("{} of {article} are missing", -now) }
        STOCK.put(&article, &now);
        now
    }
}
