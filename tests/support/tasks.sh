# For tests of tasks: generates documents of each format from a few words.  . "$(dirname "$script")/../support/tasks.sh"
# make_tasks N SEED: writes N documents each of hellaswag, arc_easy, piqa, winogrande, boolq, mmlu, lambada and text to files of these names.
make_tasks() {
    awk -v n="$1" -v seed="$2" '
        function some(least, most,    i, s, k) {
            k = least + int(rand() * (most - least + 1))
            for (i = 0; i < k; i++) s = s (i ? " " : "") word[1 + int(rand() * words)]
            return s
        }
        function pick(k) { return int(rand() * k) }
        BEGIN {
            srand(seed)
            words = split("the light and dark of day night sea land was made good very many seed tree fruit", word, " ")
            for (d = 0; d < n; d++) {
                printf "{\"activity_label\": \"%s\", \"ctx_a\": \"%s.\", \"ctx_b\": \"%s\", \"endings\": [\"%s\", \"%s\", \"%s\", \"%s\"], \"label\": \"%d\"}\n",
                    some(1, 2), some(2, 9), some(1, 2), some(1, 6), some(1, 6), some(1, 6), some(1, 6), pick(4) >"hellaswag.jsonl"
                printf "{\"question\": \"%s?\", \"choices\": {\"text\": [\"%s\", \"%s\", \"%s\"], \"label\": [\"A\", \"B\", \"C\"]}, \"answerKey\": \"%c\"}\n",
                    some(3, 9), some(1, 3), some(1, 3), some(1, 3), 65 + pick(3) >"arc_easy.jsonl"
                printf "{\"goal\": \"%s\", \"sol1\": \"%s\", \"sol2\": \"%s\", \"label\": %d}\n",
                    some(2, 6), some(1, 6), some(1, 6), pick(2) >"piqa.jsonl"
                printf "{\"sentence\": \"%s _ %s.\", \"option1\": \"%s\", \"option2\": \"%s\", \"answer\": \"%d\"}\n",
                    some(2, 5), some(1, 5), some(1, 1), some(1, 1), 1 + pick(2) >"winogrande.jsonl"
                printf "{\"passage\": \"%s.\", \"question\": \"%s\", \"label\": %d}\n", some(3, 30), some(2, 5), pick(2) >"boolq.jsonl"
                printf "{\"subject\": \"the_%s\", \"question\": \"%s\", \"choices\": [\"%s\", \"%s\", \"%s\", \"%s\"], \"answer\": %d}\n",
                    some(1, 1), some(2, 7), some(1, 2), some(1, 2), some(1, 2), some(1, 2), pick(4) >"mmlu.jsonl"
                printf "{\"text\": \"%s\"}\n", some(2, 20) >"lambada.jsonl"
                printf "{\"text\": \"%s\"}\n", some(1, 60) >"text.jsonl"
            }
        }'
}
