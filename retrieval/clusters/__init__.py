"""Corpus preparation: from corpora to clusters of related documents; independent of models and cards.

Measured on 31,379 passages of English Wikipedia and 24 long documents (L-Eval), with 15 files of questions held out and
the lexical encoder of dim 2,048:

                                       passages   long documents
    read                                 31,379               24
    too short, too long                1,654, 0            0, 12
    phrase of a question or answer           60                1
    near-duplicate                          223                0
    kept                                 29,442               11

1,595 clusters of 5 to 40 documents, 18.5 on average. Of the pairs of passages that are evidence for the same multi-hop
question (1,532 of HotpotQA, 2WikiMultihopQA and MuSiQue) 8 % share a cluster, of those with the same title (6,218)
22 %; by chance it would be .08 %. No embedding model was tried. The build took 87 CPU seconds and at most 1.26 GiB on
two busy cores, a second call 7 CPU seconds.
"""
