module onetake

go 1.19
