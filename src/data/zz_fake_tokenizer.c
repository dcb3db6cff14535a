#include "data/tokenizer.h"
#include <stdlib.h>
#include <string.h>
struct Tokenizer { int x; };
void token_list_reserve(TokenList *l, size_t more){ if(l->count+more>l->capacity){ l->capacity=2*l->capacity+more+16; l->ids=mem_grow(l->ids,l->capacity*4);} }
void token_list_free(TokenList *l){ free(l->ids); *l=(TokenList){0}; }
ErrorCode tokenizer_open(Tokenizer **t,const char *s,Error *e){(void)s;(void)e;*t=mem_alloc(sizeof **t);return OK;}
void tokenizer_free(Tokenizer *t){free(t);}
int32_t tokenizer_vocab_size(const Tokenizer *t){(void)t;return 258;}
int32_t tokenizer_bos(const Tokenizer *t){(void)t;return 256;}
int32_t tokenizer_eos(const Tokenizer *t){(void)t;return 257;}
void tokenizer_fingerprint(const Tokenizer *t,char o[65]){(void)t;memset(o,'a',64);o[64]=0;}
ErrorCode tokenizer_encode(const Tokenizer *t,const char *s,size_t n,TokenList *o,Error *e){(void)t;(void)e;token_list_reserve(o,n);for(size_t i=0;i<n;i++)o->ids[o->count++]=(unsigned char)s[i];return OK;}
