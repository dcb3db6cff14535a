"""Text that is difficult for tokenizers; shared by tokenizer_interop.py and make_tokenizer_expectations.py."""

NASTY = [
    "", " ", "  ", "   ", "     ", "\t", "\t\t a", "\n", "\n\n", "\r\n", "\r\n\r\n x", " \n ", "  \n\n  y", "a ", "a  b", "a   \n",
    "trailing spaces   ", "   leading", "x\u00a0y", "\u00a0\u00a0z", "\u3000a\u3000\u3000b", "a\u0085b", "a\u2028b\u2029c",
    "zero\u200bwidth", "mongolian\u180evowel", "a\x00b", "\x00", "\x1b[31mred",
    "it's I'm we'll you've they'd he're 't", "IT'S I'M WE'LL YOU'VE THEY'D HE'RE", "it'\u017f that'\u017fo", "it\u2019s \u2018so\u2019",
    "'s's 'x '''s o'clock", "don't\ncan't",
    "1 12 123 1234 12345 123456 1234567 12345678 123456789", "3.14159, -2e10; 1,000,000", "\u0663\u0664\u0665\u0666 \u00bd \u00b2\u00b3 \u2167",
    "C\u01b0\u0309a Vi\u00ea\u0323t", "Cu\u031b\u0309a Vie\u0323\u0302t", "C\u1eeda Vi\u1ec7t", "\u0301leading mark", "a\u0301\u0302\u0303b",
    "\u1780\u17d2\u1789\u17bb\u17c6\u1794\u17b6\u1793\u1794\u1784\u17d2\u1780\u17be\u178f", "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35",
    "\u05e9\u05b8\u05c1\u05dc\u05d5\u05b9\u05dd \u0627\u0644\u0633\u0644\u0627\u0645\u064f", "\u4f60\u597d\uff0c\u4e16\u754c\uff01", "\ud55c\uad6d\uc5b4 \u1112\u1161\u11ab",
    "\U0001F468\u200d\U0001F469\u200d\U0001F467\u200d\U0001F466 \U0001F3F3\ufe0f\u200d\U0001F308", "\U0001F1E9\U0001F1EA\U0001F1EB\U0001F1F7", "\u2764\ufe0f \u263a", "\U0001D400\U0001D401 \U00010348",
    "<|endoftext|>", "a<|end_of_text|>b", "<|begin_of_text|> hi", "<|", "|>",
    "for (int i = 0; i < n; i++) { x[i] += 1; }", "\tif x:\n\t\treturn  y\n\n\n", "https://example.org/a?b=c&d=%20#e", "----====____....",
    "!!!\n\n???\r\n...", "... \n", "a.b,c;d:e", "\ufeffbom", "\ufffd\uffff", "e\u0301 \u00e9 \u212b \u00c5 A\u030a",
    "\ufb06 'st 'l l", "\u01c5 \u02b0 \u05d0 \u10d0", "a" * 60, "\u0142" * 40, " " * 50, "\n" * 30, "ab" * 50, "1" * 50, "!" * 50,
    "\u2581", "\u2581\u2581a", "a\u2581b \u2581 c", " \u2581", "<0x0A>", "<s>text</s>", "<unk>", "HelloWorld ABCdef McDonald's ABC's aB", "it it's (it) it_ init",
    "left  left right both  both\nboth x", "a norm  norm b", "<|x|>|x| |> y y", "<think> a </think>  b<think>", "<|user|>\n hi<|end|>  \n <|end|>",
    "\n\n\n\n a\n\nb", "<table> <table>", "\u2126\uff21\ufb01\u2460 \u0130I\u0131\u03a3\u03c2 \u1e9e", "\uac00\u11a8 \u1100\u1161 \u0344 \u0958", "  WE we We", "x xx axb",
    "#include <a.h>\n\tint x_y;", "\u4f60\u597dabc\u3042\u30ab\u30bf123\ud55c", "price: \u20ac12 $5 ~3+4=7 <=>", "a \u20ac \u20ac  \u20ac", "\u20ac   ", "x \t\u20ac", "a\x01b \x02\x03 \u0378", "<|User|> <\uff5cUser\uff5c>x<\uff5cUser\uff5c>",
]
