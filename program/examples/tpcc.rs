//! New-order and payment of TPC-C (revision 5.11, clauses 2.4 and 2.5). Ten districts a warehouse, and a tenth of its items,
//! stock and customers. Customers are found by their number only. There are neither dates, names and addresses, nor
//! orders before the first. Amounts are in cents; rates (taxes, discounts) in hundredths of a percent.

#![cfg_attr(target_arch = "wasm32", no_std)]

extern crate alloc;

use alloc::format;
use alloc::string::String;
use core::ops::Range;

use awase_program::{Key, Row, Table, abort, functions, row};

/// The columns of a warehouse or a district are in tables of their own (clause 1.4 allows that): new orders, which read the
/// taxes, do not conflict with payments, which change what was taken in the year.
static WAREHOUSE_TAXES: Table<i64, i64> = Table::new("tpcc_warehouse_tax");
static WAREHOUSE_YEAR: Table<i64, i64> = Table::new("tpcc_warehouse_ytd");
static DISTRICT_TAXES: Table<(i64, i64), i64> = Table::new("tpcc_district_tax");
static DISTRICT_YEAR: Table<(i64, i64), i64> = Table::new("tpcc_district_ytd");
static NEXT_ORDERS: Table<(i64, i64), i64> = Table::new("tpcc_next_order");
static CUSTOMERS: Table<(i64, i64, i64), Customer> = Table::new("tpcc_customers");
/// By customer, and the number of the payment.
static HISTORY: Table<(i64, i64, i64, i64), Payment> = Table::new("tpcc_history");
/// The price.
static ITEMS: Table<i64, i64> = Table::new("tpcc_items");
/// By warehouse and item.
static STOCK: Table<(i64, i64), Stock> = Table::new("tpcc_stock");
static ORDERS: Table<(i64, i64, i64), Order> = Table::new("tpcc_orders");
static NEW_ORDERS: Table<(i64, i64, i64), ()> = Table::new("tpcc_new_orders");
static LINES: Table<(i64, i64, i64, i64), Line> = Table::new("tpcc_order_lines");

row! {
    struct Customer { has_bad_credit: bool, discount: i64, balance: i64, paid: i64, payments: i64, data: String }
}
row! {
    /// Where it was made, and how much it was.
    struct Payment { warehouse: i64, district: i64, amount: i64 }
}
row! {
    struct Stock { quantity: i64, year_to_date: i64, orders: i64, remote_orders: i64 }
}
row! {
    struct Order { customer: i64, lines: i64, is_local: bool }
}
row! {
    struct Line { item: i64, supplier: i64, quantity: i64, amount: i64 }
}

const DISTRICTS_COUNT: i64 = 10;
const CUSTOMERS_COUNT: i64 = 300;
const ITEMS_COUNT: i64 = 10_000;
const UNUSED_ITEM: i64 = ITEMS_COUNT + 1;
/// What a district has taken at first.
const YEAR: i64 = 3_000_000;
const DATA_BYTES_MAX: usize = 500;

/// Orders that are checked in one transaction: there is a bound of what one may read.
const SLICE: i64 = 100;

functions! {
    /// Loads a district: 1 to 10 are those of the first warehouse, and so on. With it come its part of the items and of the
    /// warehouse's stock.
    fn tpcc_load(number: i64) {
        let (warehouse, district) = place(number - 1);
        let place = (warehouse, district);
        if NEXT_ORDERS.get(&place).is_some() {
            abort!("district {district} of warehouse {warehouse} is loaded already");
        }
        let mut draw = Draw(number as u64);
        NEXT_ORDERS.put(&place, &1);
        DISTRICT_TAXES.put(&place, &draw.uniform(0, 2000));
        DISTRICT_YEAR.put(&place, &YEAR);
        if district == 1 {
            WAREHOUSE_TAXES.put(&warehouse, &draw.uniform(0, 2000));
            WAREHOUSE_YEAR.put(&warehouse, &(YEAR * DISTRICTS_COUNT));
        }
        for customer in 1..=CUSTOMERS_COUNT {
            let (has_bad_credit, discount) = (draw.uniform(1, 10) == 1, draw.uniform(0, 5000));
            let new = Customer { has_bad_credit, discount, balance: -1000, paid: 1000, payments: 1, data: String::new() };
            CUSTOMERS.put(&(warehouse, district, customer), &new);
        }
        let part = ITEMS_COUNT / DISTRICTS_COUNT;
        for item in (district - 1) * part + 1..=district * part {
            let quantity = draw.uniform(10, 100);
            STOCK.put(&(warehouse, item), &Stock { quantity, year_to_date: 0, orders: 0, remote_orders: 0 });
            if warehouse == 1 {
                ITEMS.put(&item, &draw.uniform(100, 10_000));
            }
        }
    }

    /// Orders 5 to 15 items, which `seed` determines. One line in a hundred is supplied by the warehouse `elsewhere`. The
    /// last item is an unused one if `is_wrong`: then nothing is ordered. Returns the total amount.
    fn tpcc_new_order(
        warehouse: i64, district: i64, customer: i64, elsewhere: i64, seed: i64, is_wrong: bool
    ) -> i64 {
        let place = (warehouse, district);
        let taxes = row(&WAREHOUSE_TAXES, &warehouse) + row(&DISTRICT_TAXES, &place);
        let discount = row(&CUSTOMERS, &(warehouse, district, customer)).discount;
        let order = add(&NEXT_ORDERS, &place, 1) - 1;
        let mut draw = Draw(seed as u64);
        let lines = draw.uniform(5, 15);
        let (mut sum, mut is_local) = (0, true);
        for number in 1..=lines {
            let item = if is_wrong && number == lines { UNUSED_ITEM } else { draw.non_uniform(1023, 1, ITEMS_COUNT) };
            let supplier = if draw.uniform(1, 100) == 1 { elsewhere } else { warehouse };
            let quantity = draw.uniform(1, 10);
            let amount = quantity * ITEMS.get(&item).unwrap_or_else(|| abort!("item number is not valid"));
            take_from_stock(supplier, item, quantity, supplier != warehouse);
            LINES.put(&(warehouse, district, order, number), &Line { item, supplier, quantity, amount });
            sum += amount;
            is_local &= supplier == warehouse;
        }
        ORDERS.put(&(warehouse, district, order), &Order { customer, lines, is_local });
        NEW_ORDERS.put(&(warehouse, district, order), &());
        sum * (10_000 - discount) / 10_000 * (10_000 + taxes) / 10_000
    }

    /// A customer of the district `of_district` of the warehouse `of` pays at this warehouse and district. Returns the
    /// customer's new balance.
    fn tpcc_payment(
        warehouse: i64, district: i64, of: i64, of_district: i64, customer: i64, amount: i64
    ) -> i64 {
        add(&WAREHOUSE_YEAR, &warehouse, amount);
        add(&DISTRICT_YEAR, &(warehouse, district), amount);
        let mut payer = row(&CUSTOMERS, &(of, of_district, customer));
        payer.balance -= amount;
        payer.paid += amount;
        payer.payments += 1;
        if payer.has_bad_credit {
            payer.data = format!("{customer} {of_district} {of} {district} {warehouse} {amount}, {}", payer.data);
            payer.data.truncate(DATA_BYTES_MAX);
        }
        CUSTOMERS.put(&(of, of_district, customer), &payer);
        HISTORY.put(&(of, of_district, customer, payer.payments), &Payment { warehouse, district, amount });
        payer.balance
    }

    /// Consistency condition 1 (clause 3.3.2.1): by how much what a warehouse took differs from what its districts took.
    fn tpcc_condition_1(warehouse: i64) -> i64 {
        let districts: i64 = DISTRICT_YEAR.beginning_with(&(warehouse,)).map(|(_, year)| year).sum();
        (row(&WAREHOUSE_YEAR, &warehouse) - districts).abs()
    }

    /// Condition 2: how many districts of a warehouse have another last order, or last new order, than they have counted.
    fn tpcc_condition_2(warehouse: i64) -> i64 {
        let is_wrong = |district: &i64| {
            let place = (warehouse, *district);
            let order = ORDERS.beginning_with(&place).next_back().map_or(0, |((_, _, order), _)| order);
            let new_order = NEW_ORDERS.beginning_with(&place).next_back().map_or(0, |((_, _, order), _)| order);
            [order, new_order] != [row(&NEXT_ORDERS, &place) - 1; 2]
        };
        (1..=DISTRICTS_COUNT).filter(is_wrong).count() as i64
    }

    /// Condition 3: how many new orders are missing between the first and the last one of a district, of a slice of them.
    /// Each district has so many `slices` of 100 orders, and the last one all the rest; the first district has the numbers
    /// from 0 to `slices` - 1, and so on.
    fn tpcc_condition_3(number: i64, slices: i64) -> i64 {
        let ((warehouse, district), slice) = slice(number, slices);
        let mut all = NEW_ORDERS.beginning_with(&(warehouse, district)).map(|((_, _, order), ())| order);
        let Some(first) = all.next() else { return 0 };
        let end = all.next_back().unwrap_or(first) + 1;
        let expected = (end.min(slice.end) - first.max(slice.start)).max(0);
        let rows = NEW_ORDERS.range((warehouse, district, slice.start)..(warehouse, district, slice.end)).count();
        expected - rows as i64
    }

    /// Condition 4: by how much the lines that there are differ from those that the orders have. As condition 3.
    fn tpcc_condition_4(number: i64, slices: i64) -> i64 {
        let ((warehouse, district), slice) = slice(number, slices);
        let orders = ORDERS.range((warehouse, district, slice.start)..(warehouse, district, slice.end));
        let lines = LINES.range((warehouse, district, slice.start, 0)..(warehouse, district, slice.end, 0)).count();
        (orders.map(|(_, order)| order.lines).sum::<i64>() - lines as i64).abs()
    }
}

/// Warehouse and district, counted from 0 over all.
fn place(number: i64) -> (i64, i64) {
    (number.div_euclid(DISTRICTS_COUNT) + 1, number.rem_euclid(DISTRICTS_COUNT) + 1)
}

/// Of which orders of which district it is asked.
fn slice(number: i64, slices: i64) -> ((i64, i64), Range<i64>) {
    let slice = number.rem_euclid(slices);
    let end = if slice == slices - 1 { i64::MAX } else { (slice + 1) * SLICE };
    (place(number.div_euclid(slices)), slice * SLICE..end)
}

fn row<K: Key, R: Row>(table: &Table<K, R>, key: &K) -> R {
    table.get(key).unwrap_or_else(|| abort!("there is no such row: tpcc_load loads each district of a warehouse"))
}

/// Returns the new value.
fn add<K: Key>(table: &Table<K, i64>, key: &K, amount: i64) -> i64 {
    let new = row(table, key) + amount;
    table.put(key, &new);
    new
}

fn take_from_stock(supplier: i64, item: i64, quantity: i64, is_remote: bool) {
    let mut stock = row(&STOCK, &(supplier, item));
    stock.quantity -= quantity;
    if stock.quantity < 10 {
        stock.quantity += 91;
    }
    stock.year_to_date += quantity;
    stock.orders += 1;
    stock.remote_orders += i64::from(is_remote);
    STOCK.put(&(supplier, item), &stock);
}

/// Draws that only their seed determines (SplitMix64).
struct Draw(u64);

impl Draw {
    fn uniform(&mut self, from: i64, to: i64) -> i64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        from + ((mixed ^ mixed >> 31) % (to - from + 1) as u64) as i64
    }

    /// NURand(A, x, y), clause 2.1.6, with 259 as its constant.
    fn non_uniform(&mut self, a: i64, from: i64, to: i64) -> i64 {
        ((self.uniform(0, a) | self.uniform(from, to)) + 259) % (to - from + 1) + from
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Deviations from conditions 1 to 4 in the first warehouse.
    fn deviations() -> [i64; 4] {
        let numbers = 0..DISTRICTS_COUNT * 3;
        let [third, fourth] =
            [tpcc_condition_3, tpcc_condition_4].map(|of| numbers.clone().map(|number| of(number, 3)).sum());
        [tpcc_condition_1(1), tpcc_condition_2(1), third, fourth]
    }

    fn loaded() {
        (1..=2 * DISTRICTS_COUNT).for_each(tpcc_load);
    }

    #[test]
    fn orders_and_payments_are_consistent() {
        loaded();
        for number in 0..200 {
            let (warehouse, district) = place(number % 20);
            assert!(tpcc_new_order(warehouse, district, 1 + number, 2, number, false) > 0);
            tpcc_payment(warehouse, district, 1 + number % 2, 10, 7, 100);
        }
        assert_eq!(deviations(), [0; 4]);
        assert_eq!(ORDERS.range(..).count(), 200);
        let lines: Vec<Line> = LINES.range(..).map(|(_, line)| line).collect();
        assert!(lines.iter().all(|line| (1..=ITEMS_COUNT).contains(&line.item) && line.amount >= 100));
        let stock: Vec<Stock> = STOCK.range(..).map(|(_, stock)| stock).collect();
        assert_eq!(stock.len() as i64, 2 * ITEMS_COUNT);
        assert!(stock.iter().all(|stock| (10..=100).contains(&stock.quantity)));
        assert_eq!(stock.iter().map(|stock| stock.orders).sum::<i64>(), lines.len() as i64);
        let remote = ORDERS.range(..).filter(|(_, order)| !order.is_local).count();
        assert!(remote > 0 && stock.iter().any(|stock| stock.remote_orders > 0));
        let payer = row(&CUSTOMERS, &(1, 10, 7));
        assert_eq!((payer.balance, payer.paid, payer.payments), (-11_000, 11_000, 101));
        assert_eq!(HISTORY.beginning_with(&(1, 10, 7)).count(), 100);
        assert!(payer.data.len() <= DATA_BYTES_MAX && payer.data.is_empty() != payer.has_bad_credit);
    }

    #[test]
    fn each_condition_sees_its_violation() {
        loaded();
        tpcc_new_order(1, 3, 1, 2, 1, false);
        tpcc_new_order(1, 3, 1, 2, 2, false);
        tpcc_new_order(1, 3, 1, 2, 3, false);
        add(&DISTRICT_YEAR, &(1, 1), 5);
        add(&NEXT_ORDERS, &(1, 9), 1);
        NEW_ORDERS.delete(&(1, 3, 2));
        LINES.delete(&(1, 3, 1, 1));
        assert_eq!(deviations(), [5, 1, 1, 1]);
    }

    #[test]
    #[should_panic(expected = "item number is not valid")]
    fn an_unused_item_rolls_back() {
        loaded();
        tpcc_new_order(1, 1, 1, 1, 1, true);
    }

    #[test]
    #[should_panic(expected = "district 2 of warehouse 1 is loaded already")]
    fn nothing_is_loaded_twice() {
        tpcc_load(2);
        tpcc_load(2);
    }
}
