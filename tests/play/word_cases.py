"""Texts that contain an answer as whole words, and texts that do not, by kind."""

from __future__ import annotations

CASES: dict[str, tuple[list[tuple[str, str]], list[tuple[str, str]]]] = {
    # kind: (text, answer) contained; not contained
    "quotation marks and dashes": (
        [
            *(("‘Paris’", "Paris"), ("“The Great Gatsby”", "The Great Gatsby"), ("«Paris»", "Paris")),
            *(("Paris—the capital", "Paris"), ("Paris…", "Paris"), ("¿Paris?", "Paris"), ("Paris–Nice", "Nice")),
            *(("**Paris**", "Paris"), ("Paris[1]", "Paris"), ("Paris.The rest", "Paris"), ("Paris-based", "Paris")),
        ],
        [("Parisian", "Paris"), ("Romeo", "Rome"), ("non-fiction", "fiction"), ("anything", ".")],
    ),
    "words written together or apart": (
        [
            *(
                ("Kraków/Poland", "Kraków"),
                ("Kraków/Poland", "Poland"),
                ("the U.S. today", "US"),
                ("in the US", "U.S."),
            ),
            *(
                ("J.R.R. Tolkien", "J. R. R. Tolkien"),
                ("Spiderman", "Spider-Man"),
                ("Jean Paul Sartre", "Jean-Paul Sartre"),
            ),
            *(
                ("Jean‑Paul Sartre", "Jean-Paul Sartre"),
                ("ACDC", "AC/DC"),
                ("AT&T", "AT & T"),
                ("New\u00a0York", "New York"),
            ),
        ],
        [("NewYork", "New York"), ("a, c", "ac"), ("Eiffel", "Eiffel Tower"), ("Emma", "Emma (novel)")],
    ),
    "apostrophes": (
        [
            *(("O’Brien", "O'Brien"), ("OBrien", "O'Brien"), ("Paris's mayor", "Paris"), ("Paris’s mayor", "Paris")),
            *(("the boys’ club", "boys"), ("McDonalds", "McDonald's"), ("the 1990’s", "1990s")),
        ],
        [("O'Brien", "Brien"), ("Emma's", "s"), ("O’Brien", "Brien")],
    ),
    "numbers": (
        [
            *(("1,000", "1000"), ("1000", "1,000"), ("1 000", "1000"), ("1\u202f000", "1000"), ("1'000", "1000")),
            *(
                ("1914–1918", "1914"),
                ("1914–1918", "1918"),
                ("1914–1918", "1914-1918"),
                ("−5 °C", "-5"),
                ("minus 5", "-5"),
            ),
            *(("It is 3.5.", "3.5"), ("1½", "1 1/2"), ("½", "1/2"), ("a 3-year plan", "3"), ("the 3rd", "3rd")),
            *(("post-1945 Europe", "1945"), ("pre-1914", "1914"), ("the mid-1990s", "1990s"), ("since-2010", "2010")),
        ],
        [
            *(("3.55", "3.5"), ("3.5", "3"), ("13", "3"), ("-5", "5"), ("−5", "5"), ("minus 5", "5"), ("5", "-5")),
            *(("3.5", "35"), ("35", "3.5"), ("3,4", "34"), ("10²", "102"), ("1½", "1"), ("3/4", "4"), ("3:30", "3")),
            *(
                ("COVID-19", "19"),
                ("21st", "1st"),
                ("3rd", "3"),
                ("2000", "1,000"),
                ("1,000,000", "1,000"),
                ("5kg", "5"),
            ),
        ],
    ),
    "signs of currencies and per cent": (
        [
            *(("$5", "5"), ("5", "$5"), ("5%", "5"), ("5 percent", "5%"), ("5%", "5 per cent"), ("5 €", "€5")),
            *((r"$12\%$", "12%"), ("US$5", "$5")),
        ],
        [("€5", "$5"), ("$5", "5%"), ("5 apples", "5 percent"), ("$55", "$5")],
    ),
    "ways to write a character": (
        [
            *(("Krako\u0301w", "Kraków"), ("Ｐａｒｉｓ！", "Paris"), ("Par\u200bis", "Paris"), ("STRASSE", "Straße")),
            *(("CO₂", "CO2"), ("Paris¹", "Paris"), ("Paris™", "Paris"), ("🗼Paris🇫🇷", "Paris"), ("a 🍎.", "🍎")),
        ],
        [("résumé", "resume"), ("🍏", "🍎"), ("C++", "C"), ("C#", "C")],
    ),
    "scripts without spaces": (
        [
            ("答案：巴黎。", "巴黎"),
            ("「巴黎」", "巴黎"),
            ("答案是巴黎", "巴黎"),
            ("東京は", "東京"),
            ("हिन्दी।", "हिन्दी"),
        ],
        [("巴黎", "北京"), ("パリス", "パリ")],
    ),
    "articles and punctuation alone": (
        [
            *(
                ("Great Gatsby", "The Great Gatsby"),
                ("Lord of Rings", "Lord of the Rings"),
                ("Vitamin A is good", "Vitamin A"),
            ),
            *(("(A)", "A"), ("“A”", "A"), ("*", "*"), ("A. Berg", "A. Berg")),
        ],
        [
            ("It is a river", "A"),
            ("vitamin C", "Vitamin A"),
            ("vitamins", "Vitamin A"),
            ("", "Paris"),
            ("x", ""),
            ("''", "."),
        ],
    ),
}
